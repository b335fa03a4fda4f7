"""Airflow on PostgreSQL, with two schedulers, whose database cannot be reached for half a minute while tasks work."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from airflow_raytpu.model.errors import BackendUnreachable, PlaceError
from tests import airflow_faults as faults
from tests import held_work, postgres
from tests.held_work import Marks
from tests.loopback_proxy import Proxy, proxy
from tests.real_airflow import RealAirflow, Run, real_airflow
from tests.simulated_cluster import SimulatedCluster, running_cluster, wait_for

pytestmark = [
    pytest.mark.long,
    pytest.mark.airflow,
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing()),
]

OUTAGE_S = 30.0

COMPONENTS = ("scheduler", "triggerer", "api-server", "dag-processor")

SOON = {
    # A worker that is silent for so long is given up; by default 300 s.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    # What a dead scheduler left is taken over so soon; by default 30 s and 300 s.
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__CORE__PARALLELISM": "8",
}

DAG = """
from datetime import datetime, timedelta
from airflow.sdk import DAG
from airflow_raytpu.operators import RayTpuJobOperator

def work(task_id, *, deferrable=True, how="hold"):
    RayTpuJobOperator(
        task_id=task_id,
        run="held.py",
        op_args=[{marks!r}, task_id, how],
        cluster={shared!r},
        reserve=False,
        deferrable=deferrable,
        retries=0 if how == "fail" else 5,
        retry_delay=timedelta(seconds=1),
    )

with DAG("outage", schedule=None):
    for mode, deferrable in (("deferred", True), ("worker", False)):
        work(mode, deferrable=deferrable)
        work(mode + "-ends", deferrable=deferrable)
        work(mode + "-fails", deferrable=deferrable, how="fail")

# Its days are over, so that no run is made but those that are asked for.
with DAG("twice", schedule="@daily", start_date=datetime(2026, 1, 1), end_date=datetime(2026, 1, 2), catchup=False):
    work("twice", how="done")
"""

MODES = ("deferred", "worker")
TASKS = ["".join(each) for each in itertools.product(MODES, ("", "-ends", "-fails"))]
THE_DAY = "2026-01-01T00:00:00+00:00"


@dataclass(frozen=True)
class Stage:
    airflow: RealAirflow
    shared: SimulatedCluster
    marks: Marks
    database: Proxy

    def jobs(self) -> held_work.Jobs:
        return held_work.jobs(held_work.listing(self.shared.found))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    dags = tmp_path_factory.mktemp("dags")
    marks = Marks(tmp_path_factory.mktemp("marks"))
    marks.put_program(dags)
    with running_cluster("v6e:2x2") as shared, postgres.running_postgres() as port, proxy(port) as database:
        (dags / "outage.py").write_text(DAG.format(shared=shared.request.name, marks=str(marks.folder)))
        environment = {**held_work.connection(shared.root), **postgres.settings(database.port), **SOON}
        with real_airflow(tmp_path_factory.mktemp("airflow") / ".demo", dags, environment) as airflow:
            airflow.start("scheduler")
            yield Stage(airflow, shared, marks, database)


def test_one_run_that_is_asked_for_twice_is_one_run_with_one_job(stage):
    refused: list[str] = []

    def ask(how) -> None:
        try:
            how()
        except (PlaceError, BackendUnreachable) as error:
            refused.append(str(error))

    asked = [
        lambda: faults.trigger(stage.airflow, "twice", run_id="a", logical_date=THE_DAY),
        lambda: faults.trigger(stage.airflow, "twice", run_id="b", logical_date=THE_DAY),
        lambda: faults.backfill(stage.airflow, "twice", THE_DAY, THE_DAY),
    ]
    threads = [threading.Thread(target=ask, args=(each,)) for each in asked]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (run,) = wait_for(lambda: faults.runs(stage.airflow, "twice"), 60)
    assert run.end(120) == "success"
    assert stage.jobs()[run.dag_id, run.run_id, "twice"] == {1: True}
    assert [len(refused) >= 1, stage.marks.count("twice", "began")] == [True, 1]


@pytest.fixture(scope="module")
def run(stage: Stage) -> Run:
    """The run when the outage is over, and it has ended."""
    airflow, marks = stage.airflow, stage.marks
    run = faults.trigger(airflow, "outage")
    wait_for(lambda: all(is_at_work(stage, run, task_id) for task_id in TASKS), 150, every_s=0.5)
    stage.database.cut()
    faults.kill(faults.component(airflow, "scheduler", alone=True))
    for task_id in TASKS:
        if "-" in task_id:
            marks.release(task_id)
    # The outage itself, and no wait for anything.
    time.sleep(OUTAGE_S)
    stage.database.mend()
    # The one that lived fails with its database, and does not end before its workers do (3.3).
    airflow.start("scheduler")
    be_well(airflow, within_s=150)
    for task_id in MODES:
        assert marks.at_work(task_id)
        marks.release(task_id)
    run.end(200)
    return run


def is_at_work(stage: Stage, run: Run, task_id: str) -> bool:
    state = "deferred" if task_id.startswith("deferred") else "running"
    return stage.marks.count(task_id, "began") == 1 and faults.row(run, task_id)["state"] == state


def be_well(airflow: RealAirflow, within_s: float) -> None:
    """Start what has ended with its database again, as whoever runs Airflow does, until all of it is up."""
    said: list[str] = []

    def is_well() -> bool:
        for name in COMPONENTS:
            if not airflow.pids(name):
                airflow.start(name)
        try:
            said.append(str(airflow.api._call("GET", "/api/v2/monitor/health")))
            return airflow.api.health()
        except (PlaceError, BackendUnreachable) as error:
            said.append(str(error))
            return False

    try:
        wait_for(is_well, within_s, every_s=1)
    except TimeoutError:
        pytest.fail(f"Airflow is not well: {said[-1]}")


@pytest.mark.parametrize("task_id", TASKS)
def test_an_outage_of_the_database_stops_nothing_doubles_nothing_and_leaves_the_verdict_right(stage, run, task_id):
    fails, row = task_id.endswith("-fails"), faults.row(run, task_id)
    assert row["state"] == ("failed" if fails else "success")
    # A worker's success that Airflow could not be told is handed over; after such a failure the next try begins anew.
    attempts = row["try_number"] if task_id == "worker-fails" else 1
    assert stage.jobs()[run.dag_id, run.run_id, task_id] == dict.fromkeys(range(1, attempts + 1), True)
    counts = [stage.marks.count(task_id, what) for what in ("began", "saved", "done")]
    assert counts == [attempts, 0, int(not fails)]


@pytest.mark.parametrize("mode", MODES)
def test_who_failed_meanwhile_says_why(stage, run, mode):
    assert "held.py ended with sys.exit(3)" in run.log(stage.airflow.home, f"{mode}-fails")
