"""The language model of the examples, as far as it needs no slice."""

from __future__ import annotations

import runpy
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

DAGS = Path(__file__).parents[2] / "dags"


@pytest.fixture(autouse=True)
def beside_the_dags(monkeypatch):
    monkeypatch.syspath_prepend(str(DAGS))


def windows(folder):
    return np.stack([row.as_py() for row in pq.read_table(folder)["tokens"]])


def test_there_are_two_texts_and_what_is_held_out_is_not_trained_on(tmp_path, monkeypatch):
    from language_model import data
    from language_model.data import HELD_OUT, write_windows

    # The whole of them takes some seconds.
    monkeypatch.setattr(data, "DOCSTRINGS", 100_000)
    uris = write_windows(tmp_path.as_uri(), length=512)

    found = {name: windows(tmp_path / name) for name in uris if name != "killed"}
    assert not (tmp_path / "killed").exists()
    assert found["docstrings"].size > 50_000
    assert found["topics"].size > 300_000
    assert len(list((tmp_path / "topics").iterdir())) == 4
    for name in ("docstrings", "topics"):
        kept = found[f"{name}_held_out"]
        assert kept.shape == (HELD_OUT, 513)
        assert not {each.tobytes() for each in kept} & {each.tobytes() for each in found[name]}
    assert any(b"statement" in bytes(each.astype(np.uint8)) for each in found["topics"])


def test_large_arrays_are_cut_along_their_longest_side_and_small_ones_are_whole():
    from jax.sharding import AbstractMesh

    from language_model.train import layout

    shapes = {"wide": (64, 256), "tall": (256, 64), "odd": (64, 513), "flat": (255, 257), "bias": (256,), "none": ()}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}

    placed = layout(AbstractMesh((8,), ("fsdp",)), arrays)

    assert {name: tuple(each.spec) for name, each in placed.items()} == {
        "wide": (None, "fsdp"),
        "tall": ("fsdp",),
        "odd": ("fsdp",),
        "flat": (),
        "bias": (),
        "none": (),
    }


def test_each_row_is_seen_once_an_epoch_and_a_resumed_run_goes_on_in_its_middle(tmp_path):
    from airflow_raytpu.model.datasets import Dataset
    from airflow_raytpu.runtime import data
    from airflow_raytpu.runtime.feed import Feed
    from airflow_raytpu.runtime.sources import scan

    pq.write_table(pa.table({"tokens": [[row] for row in range(10)]}), tmp_path / "rows.parquet")

    def batches(start):
        # As the loop asks for them.
        with data.opened(Feed({"train": scan(Dataset(tmp_path.as_uri()))})):
            found = data.batches("train", global_batch_size=2, start=start, stop=10, shuffle_seed=0)
            return [batch["tokens"].ravel().tolist() for batch in found]

    whole = batches(start=0)

    assert sorted(chain(*whole[:5])) == sorted(chain(*whole[5:])) == list(range(10))
    assert whole[:5] != whole[5:]
    assert batches(start=7) == whole[7:]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, ""),
        ({"held_out": 2.9}, "held-out loss went from 3.000 to 2.900; raise finetune_steps"),
        ({"held_out": float("nan")}, "held-out loss went from 3.000 to nan"),
        ({"evictions": 0}, "killed at step 25: 0 evictions, resumed at 20"),
        ({"resumed_at": 0}, "killed at step 25: 1 evictions, resumed at 0"),
        ({"kill_at_step": 0, "evictions": 0, "resumed_at": 0}, ""),
    ],
)
def test_what_has_not_learnt_or_not_gone_on_is_no_success(changes, complaint):
    seen = {"held_out": 2.5, "evictions": 1, "resumed_at": 20, "kill_at_step": 25, **changes}
    metrics = {"held_out_at_start": 3.0, "held_out": seen["held_out"], "resumed_at": float(seen["resumed_at"])}
    trained = {"metrics": metrics, "evictions": seen["evictions"], "best_checkpoint": "gs://b/30"}
    verdict = runpy.run_path(str(DAGS / "06_language_model.py"))["verdict"].function

    if complaint:
        with pytest.raises(ValueError, match=complaint):
            verdict(trained, seen["kill_at_step"])
    else:
        assert verdict(trained, seen["kill_at_step"])["held_out"] == [3.0, 2.5]


def test_the_best_of_a_sweep_is_the_one_with_the_least_loss_and_none_is_an_error():
    choose = runpy.run_path(str(DAGS / "07_sweep.py"))["choose"].function
    trained = [
        {"metrics": {"held_out": loss, "learning_rate": rate}, "best_checkpoint": f"gs://b/{rate}"}
        for rate, loss in ((0.1, 3.0), (0.2, 2.0), (0.3, 2.5))
    ]

    chosen = choose(iter(trained))

    assert (chosen["learning_rate"], chosen["checkpoint"]) == (0.2, "gs://b/0.2")
    with pytest.raises(ValueError, match="no training came to its end"):
        choose([])


@pytest.mark.parametrize(("file", "asset"), [("arrived", "new_data"), ("announced", "new_model")])
def test_a_run_that_no_asset_began_says_what_to_trigger(file, asset):
    found = runpy.run_path(str(DAGS / "08_retrain_on_asset.py"))

    with pytest.raises(ValueError, match="trigger digits_data instead"):
        found[file].function(triggering_asset_events={found[asset]: []})


def test_of_several_events_the_newest_counts():
    found = runpy.run_path(str(DAGS / "08_retrain_on_asset.py"))
    events = [SimpleNamespace(timestamp=at, extra={"train": f"gs://b/{at}"}) for at in (2, 3, 1)]

    assert found["arrived"].function({found["new_data"]: events}) == {"train": "gs://b/3"}


def test_a_host_dies_once(tmp_path, monkeypatch):
    import os

    import jax

    from language_model.train import die_once

    killed = []
    monkeypatch.setattr(os, "kill", lambda *args: killed.append(args))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    config = {"kill_at_step": 3, "kill_marker": (tmp_path / "killed").as_uri()}
    for rank in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda rank=rank: rank)
        die_once(config, 2)
        die_once({**config, "kill_at_step": 0}, 0)
        die_once({}, 3)
        assert killed == []
        assert not (tmp_path / "killed").exists()
        die_once(config, 3)
        if rank == 0:
            assert killed == []
    assert len(killed) == 1
    die_once(config, 3)
    assert len(killed) == 1
