"""Thirty dates on two slices, with a pool of Airflow's and without; duplicates, mapped tasks, a stopped backfill.

All of it shares one Airflow and the example's one cluster, whose two slices are what everybody wants. Who held which
slice and when is what the programs themselves have written.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_raytpu.model.errors import BackendUnreachable, PlaceError
from tests import airflow_faults as faults
from tests.real_airflow import Run, real_airflow
from tests.simulated_cluster import wait_for
from tests.slice_turns import BAD, MAPPED, SLICES, Slices, examples_cluster, most_at_once, overtaken

pytestmark = [pytest.mark.long, pytest.mark.airflow, pytest.mark.cluster, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[2] / "dags" / "05_backfill.py"
DATES = [f"2026-01-{day:02}" for day in range(1, 31)]
WITHOUT = 12
"""Dates that are asked for without any limit. All their drivers start at once, so thirty are left to the benchmark."""

STOPPED_WITHIN_S = 120.0
"""A minute is what is promised; two cores that are busy with other tests may take another."""


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slices]:
    folder = tmp_path_factory.mktemp("backfill")
    dags = folder / "dags"
    dags.mkdir()
    shutil.copy(EXAMPLE, dags)
    Slices.put_dags(folder, dags)
    with real_airflow(folder / "airflow" / ".demo", dags, {}) as airflow, examples_cluster(airflow.home.simulated):
        found = Slices(airflow, folder)
        found.make_pool()
        yield found


def backfill(slices: Slices, dag_id: str, dates: int, **options: Any) -> int:
    """Have the first *dates* dates of January made; the backfill's id."""
    api = slices.airflow.api
    wanted = {"dag_id": dag_id, "from_date": DATES[0], "to_date": DATES[dates - 1], "max_active_runs": 30, **options}

    def made() -> int | None:
        try:
            return api._call("POST", "/api/v2/backfills", wanted)["id"]
        except BackendUnreachable:
            # SQLite lets one write at a time, and Airflow then answers that its database is locked.
            return None

    wait_for(lambda: api.has_dag(dag_id), every_s=0.5)
    # Paused meanwhile: where its database was locked, Airflow deletes the runs that it has made so far, and a scheduler
    # that works on one of them dies of it (3.3.2).
    api._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": True})
    try:
        return wait_for(made, every_s=0.5)
    finally:
        api._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})


def test_the_example_gives_each_date_a_whole_slice_of_the_one_cluster(slices):
    # Beside the two dates that are asked for, the schedule makes the latest one.
    backfill(slices, "backfill", 2)
    slices.succeed("backfill", 3, within_s=200)

    values = [run.result("count") for run in faults.runs(slices.airflow, "backfill")]
    assert {value["day"] for value in values} > set(DATES[:2])
    assert {value["chips"] for value in values} == {8}
    assert {value["slice"] for value in values} <= {part.name for part in slices.found.record.slices}


def test_there_is_one_job_for_each_wish_however_often_it_is_scheduled(slices):
    """By its schedule and by a backfill, by a backfill once more, and by hand under a run id that is taken."""
    airflow = slices.airflow
    faults.trigger(airflow, "twice", run_id="mine")
    with pytest.raises(PlaceError, match="409"):
        faults.trigger(airflow, "twice", run_id="mine")
    # The schedule makes the first date by itself; the backfill leaves it alone, at work or done.
    wait_for(lambda: slices.run_states("twice").total() == 2)
    first = backfill(slices, "twice", 3)
    with pytest.raises(PlaceError, match="409"):
        backfill(slices, "twice", 3)
    slices.succeed("twice", 4, within_s=200)
    assert [each.attempt for each in slices.jobs("twice")] == [1] * 4
    assert len(slices.stints("twice")) == 4

    # Airflow looks twice a minute which backfills are done.
    wait_for(lambda: airflow.api._call("GET", f"/api/v2/backfills/{first}")["completed_at"], 100, every_s=1.0)
    backfill(slices, "twice", 3, reprocess_behavior="completed")
    wait_for(lambda: slices.run_states("twice") == {"success": 4}, 200, every_s=1.0)
    # Each of the three dates is worked on anew; the run by hand is no part of it.
    assert Counter(each.attempt for each in slices.jobs("twice")) == {1: 4, 2: 3}
    times = Counter(each.key for each in slices.stints("twice"))
    assert times.pop("twice/mine") == 1
    assert list(times.values()) == [2, 2, 2]
    assert most_at_once(slices.stints("twice")) <= SLICES
    wait_for(slices.rest)


def test_mapped_tasks_have_a_result_each_and_a_bad_one_fails_alone(slices):
    run = faults.trigger(slices.airflow, "mapped")
    assert run.end(within_s=300) == "failed"

    good = [number for number in range(MAPPED) if number != BAD]
    states = {row["map_index"]: row["state"] for row in slices.rows("mapped")}
    assert states == {**dict.fromkeys(good, "success"), BAD: "failed"}
    assert [mapped_result(run, number)["value"]["key"] for number in good] == [f"mapped/{number}" for number in good]
    stints = slices.stints("mapped")
    assert sorted(each.key for each in stints) == [f"mapped/{number}" for number in range(MAPPED)]
    assert most_at_once(stints) <= SLICES
    assert sorted(each.map_index for each in slices.jobs("mapped")) == list(range(MAPPED))
    wait_for(slices.rest)


def test_a_cancelled_backfill_starts_no_more_and_marking_its_runs_failed_stops_the_rest(slices):
    number = backfill(slices, "stopped", 10, max_active_runs=4)
    # Two are at work, and two wait for a slice.
    wait_for(lambda: len(slices.stints("stopped")) == SLICES and len(slices.jobs("stopped")) == 4, 200, every_s=0.5)
    faults.cancel_backfill(slices.airflow, number)
    assert slices.run_states("stopped") == {"failed": 6, "running": 4}
    for run in faults.runs(slices.airflow, "stopped"):
        faults.mark_run(run, "failed")
    wait_for(slices.rest, STOPPED_WITHIN_S, every_s=1.0)

    (slices.folder / "gate").touch()
    assert [each.end for each in slices.stints("stopped")] == [None, None]
    assert len(slices.jobs("stopped")) == 4
    assert slices.run_states("stopped") == {"failed": 10}
    assert not {row["state"] for row in slices.rows("stopped")} & {"success", "running", "deferred", "queued"}


def test_thirty_dates_in_a_pool_of_two_run_in_order_each_by_itself(slices):
    backfill(slices, "pooled", 30)
    backfill(slices, "trained", 2)
    slices.succeed("pooled", 30, within_s=600)
    slices.succeed("trained", 2, within_s=200)

    stints = slices.stints("pooled")
    assert sorted(each.key for each in stints) == keys("pooled", 30)
    assert most_at_once(stints) <= SLICES
    assert overtaken([each.key for each in stints]) < SLICES
    assert slices.pool_in_use() == 0
    check_isolated(slices, "pooled")
    for day, run in enumerate(faults.runs(slices.airflow, "trained"), 1):
        result = run.result("train")
        assert (result["step"], result["resumed_from"], result["metrics"]["day"]) == (2, 0, day)
        assert f"/trained/train/{run.run_id[:20]}" in result["checkpoint"]
    wait_for(slices.rest)


def test_dates_without_a_limit_wait_inside_the_cluster_and_nobody_is_lost(slices):
    backfill(slices, "free", WITHOUT)
    slices.succeed("free", WITHOUT, within_s=600)

    stints = slices.stints("free")
    assert sorted(each.key for each in stints) == keys("free", WITHOUT)
    assert most_at_once(stints) <= SLICES
    check_isolated(slices, "free")
    wait_for(slices.rest)


def keys(dag_id: str, dates: int) -> list[str]:
    return [f"{dag_id}/backfill__{day}T00:00:00+00:00" for day in DATES[:dates]]


def check_isolated(slices: Slices, dag_id: str) -> None:
    """Each date has a result of its own, in a folder of its own, and no restart was needed."""
    runs = faults.runs(slices.airflow, dag_id)
    assert len(slices.jobs(dag_id)) == len(runs)
    assert list(slices.results(dag_id).values()) == [1] * len(runs)
    for run in runs:
        result = run.result("work")
        assert result["value"] == {"key": f"{dag_id}/{run.run_id}", "slice": result["slices"][0]}
        assert (result["failures"], result["evictions"]) == (0, 0)


def mapped_result(run: Run, map_index: int) -> Any:
    path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/work/xcomEntries/return_value"
    return run.api._call("GET", f"{path}?map_index={map_index}")["value"]
