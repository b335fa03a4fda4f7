"""Where the command looks, without any cluster."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from airflow_raytpu import cli
from airflow_raytpu.slices_view import reading
from tests.doubles.scripted import ScriptedBackend, tpu_slice


@pytest.fixture
def nothing_here(monkeypatch, tmp_path):
    monkeypatch.setattr(reading, "_roots", lambda: [tmp_path])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "There is no cluster on this machine, for this user.\n"),
        (["--cluster", "shared"], "There is no cluster shared on this machine, for this user.\n"),
        (["--output", "json"], "[]\n"),
        (["--output", "yaml"], "[]\n"),
    ],
)
def test_where_there_is_no_cluster_it_says_so(nothing_here, arguments, says):
    result = CliRunner().invoke(cli.commands, ["slices", *arguments])
    assert (result.exit_code, result.output) == (0, says)


@pytest.mark.parametrize(("asked", "found"), [(None, 2), ("shared-abcdefgh", 1), ("shared", 1), ("share", 0)])
def test_a_cluster_is_found_by_its_name_with_or_without_its_hash(monkeypatch, asked, found):
    ours = [tpu_slice(cluster="shared-abcdefgh"), tpu_slice(cluster="other")]
    backend = ScriptedBackend(pictures=[ours])
    monkeypatch.setattr(reading, "_of_machine", lambda: [backend])
    assert len(reading.read(None, asked)) == found
    # Naming it would keep it alive.
    assert backend.calls == [("slices", "")]
    assert backend.closed == 1


def test_a_connection_leads_elsewhere(place_with):
    backend = ScriptedBackend(pictures=[[tpu_slice()]])
    place_with(backend)
    result = CliRunner().invoke(cli.commands, ["slices", "--conn-id", "prod", "--output", "json"])
    assert result.exit_code == 0
    assert '"shared-0"' in result.output
    backend.pictures = [[]]
    result = CliRunner().invoke(cli.commands, ["slices", "--conn-id", "prod"])
    assert result.output == "There is no cluster on connection prod.\n"


def test_only_private_folders_of_ones_own_are_read(monkeypatch, short_path: Path):
    user = os.getuid()
    monkeypatch.setattr(reading, "Path", lambda text: short_path if text == "/tmp" else Path(text))
    monkeypatch.setenv("RAYTPU_SIM_ROOT", str(short_path / "absent"))
    demo = short_path / f"raytpu-{user}-abc123"
    demo.mkdir()
    (short_path / f"raytpu-{user}-link").symlink_to(demo)
    (short_path / f"raytpu-{user}-file").touch()
    (short_path / f"raytpu-{user}1").mkdir()
    (short_path / f"raytpu-{user}-open").mkdir()
    (short_path / f"raytpu-{user}-open").chmod(0o777)
    assert reading._roots() == [demo]
    monkeypatch.delenv("RAYTPU_SIM_ROOT")
    usual = short_path / f"raytpu-{user}"
    usual.mkdir()
    assert reading._roots() == [usual, demo]


def test_slices_of_several_backends_are_shown_together(monkeypatch):
    backends = [ScriptedBackend(pictures=[[replace(tpu_slice(), cluster=name)]]) for name in ("a", "b")]
    monkeypatch.setattr(reading, "_of_machine", lambda: backends)
    assert [each.cluster for each in reading.read(None, None)] == ["a", "b"]
