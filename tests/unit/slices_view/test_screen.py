"""The picture on a screen: readable in 80 columns, coloured only on a terminal."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
import yaml

from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.slices import Holder
from airflow_raytpu.slices_view import screen
from tests.doubles.scripted import tpu_slice

NOW = 10_000.0
TRAIN = Identity(deployment="d", dag_id="digits", task_id="train", run_id="scheduled__2026-11-29T00:00:00+00:00")
SLICES = [
    tpu_slice("busy", holders=(Holder(job="j", owner=TRAIN),), since=NOW - 2460),
    tpu_slice("broken", name="shared-1", since=NOW - 720),
    tpu_slice("idle", name="shared-2", shape="v6e:2x4@ct6e-standard-8t", hosts=1, present=(0,), since=NOW - 5),
    tpu_slice("starting", name="shared-3", present=()),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(slices=SLICES, output: str = "text", file: io.StringIO | None = None) -> str:
    file = file or io.StringIO()
    screen.show(slices, output, NOW, file)
    return file.getvalue()


def test_one_line_a_slice(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert [line.rstrip() for line in shown().splitlines()] == [
        "CLUSTER  SLICE     SHAPE         HOSTS  STATE     HOLDER                  AGE",
        "shared   shared-0  v6e 4x4       ####   busy      digits/train 11-29      41 min",
        "shared   shared-1  v6e 4x4       ##.#   broken    - (host 2 of 4          12 min",
        "                                                  missing)",
        "shared   shared-2  v6e 2x4 (8t)  #      idle      -                       5 s",
        "shared   shared-3  v6e 4x4       ....   starting  -                       -",
    ]


def test_a_clusters_hash_is_shown_where_it_tells_two_apart():
    first, second, third = (tpu_slice(cluster=name) for name in ("a-abcdefgh", "a-bcdefghi", "b-abcdefgh"))
    names = [line.split()[0] for line in shown([first, second, third]).splitlines()[1:]]
    assert names == ["a-abcdefgh", "a-bcdefghi", "b"]


def test_the_longest_names_fit_80_columns_and_nothing_is_cut():
    long = "a" * 32 + "-abcdefgh"
    state = tpu_slice(
        "broken",
        cluster=long,
        name="a" * 24 + "-11",
        shape="v5e:2x4@ct5lp-hightpu-8t",
        hosts=240,
        present=tuple(range(200)),
        holders=(Holder(job="j", owner=replace(TRAIN, task_id="t" * 100)),),
        fault=f"hosts {', '.join(map(str, range(200, 240)))} of 240 missing",
        since=1.0,
    )
    text = shown([state])
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    squeezed = "".join(text.split())
    assert squeezed.count("#") == 200
    assert squeezed.count("t" * 5) >= 5


@pytest.mark.parametrize("hosts", [1, 4, 8, 16, 64])
def test_the_grid_has_a_place_for_each_host(hosts):
    state = tpu_slice(hosts=hosts, present=tuple(range(hosts - 1)))
    lines = screen.grid(state).split("\n")
    assert "".join(lines) == "#" * (hosts - 1) + "."
    assert max(map(len, lines)) <= 8


def test_colour_is_for_terminals(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in shown()
    assert "\x1b[31mbroken" in shown(file=Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in shown(file=Terminal())


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_the_same_as_data(output, load):
    assert load(shown(output=output)) == [each.to_dict() for each in SLICES]
    assert load(shown([], output)) == []
