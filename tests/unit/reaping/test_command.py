"""``airflow-raytpu reap`` from its arguments to its exit status."""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import CliRunner

from airflow_raytpu import cli
from airflow_raytpu.model.errors import BackendUnreachable, ClusterError
from tests.doubles.scripted import ScriptedBackend, orphan


def said(*arguments: str):
    return CliRunner().invoke(cli.commands, ["reap", *arguments])


def test_where_nothing_is_left_it_says_so(place_with):
    backend = ScriptedBackend()
    place_with(backend)
    result = said()
    assert (result.exit_code, result.output) == (
        0,
        "Nothing of deployment airflow is left behind where raytpu_default leads.\n",
    )
    assert backend.calls == [("orphans", "airflow 3600")]
    assert backend.closed == 1


def test_each_is_one_line_with_its_owner_its_age_and_why(place_with):
    backend = ScriptedBackend(left=[orphan(name="a"), orphan(name="b", why="ended, failed")])
    place_with(backend)
    result = said("--conn-id", "prod")
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    assert first.startswith("reaped RayJob a of digits/train (run, attempt 1): running, not looked at for ")
    assert "reaped RayJob b of digits/train (run, attempt 1): ended, failed, not " in second
    assert backend.verbs("reap") == ["reap", "reap"]


def test_a_dry_run_only_looks(place_with):
    backend = ScriptedBackend(left=[orphan(name="a")])
    place_with(backend)
    result = said("--dry-run")
    assert result.exit_code == 0
    assert result.output.startswith("found RayJob a of ")
    assert backend.verbs("reap") == []


def test_one_that_resists_is_told_by_the_exit_status(place_with):
    backend = ScriptedBackend(left=[orphan(name="a"), orphan(name="b")], ends=[ClusterError("It stays."), True])
    place_with(backend)
    result = said()
    assert result.exit_code == 1
    assert [line.split()[0] for line in result.output.splitlines()] == ["resists", "reaped"]
    assert result.output.splitlines()[0].endswith("; It stays.")
    assert backend.closed == 1


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_as_data(place_with, output, read):
    place_with(ScriptedBackend(left=[orphan(name="a")]))
    (row,) = read(said("--output", output).output)
    assert row["owner"]["dag_id"] == "digits"
    assert row["silent_s"] > 0
    told = {name: row[name] for name in ("kind", "name", "uid", "why", "fate", "says")}
    assert told == {"kind": "RayJob", "name": "a", "uid": "u", "why": "running", "fate": "reaped", "says": ""}
    place_with(ScriptedBackend())
    assert read(said("--output", output).output) == []


@pytest.mark.parametrize(
    ("span", "seconds"), [("0s", "0"), ("90s", "90"), ("90m", "5400"), ("12h", "43200"), ("2d", "172800")]
)
def test_the_span_in_any_unit(place_with, span, seconds):
    backend = ScriptedBackend()
    place_with(backend)
    assert said("--older-than", span).exit_code == 0
    assert backend.calls == [("orphans", f"airflow {seconds}")]


@pytest.mark.parametrize(
    "span", ["", "1", "-1h", "1.5h", "h", "1 h", "1h30m", "nan", "1w", "9999999999d", "1h\n", "\u0661h"]
)
def test_a_span_that_is_none_is_refused_before_anything_is_asked(place_with, span):
    backend = ScriptedBackend()
    place_with(backend)
    result = said("--older-than", span)
    assert result.exit_code == 2
    assert "such as 90m" in result.output
    assert backend.calls == []


def test_a_place_that_cannot_be_asked_is_an_error_and_is_closed(place_with):
    class Away(ScriptedBackend):
        async def orphans(self, deployment, older_than_s):
            raise BackendUnreachable("No answer.")

    backend = Away()
    place_with(backend)
    result = said()
    assert isinstance(result.exception, BackendUnreachable)
    assert result.exit_code == 1
    assert backend.closed == 1
