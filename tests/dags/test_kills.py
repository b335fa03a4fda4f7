"""A user ends a task in every way and at every moment: the remote work stops, and nothing of it is left.

All cases run side by side, each in a run of its own, on one cluster. A second cluster is held while it comes up, so
that what is to run there has not been submitted yet.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.state import Arrivals
from tests import airflow_faults as faults
from tests import held_work, postgres
from tests.held_work import Marks
from tests.real_airflow import RealAirflow, Run, real_airflow
from tests.simulated_cluster import (
    SimulatedCluster,
    beating,
    cluster_request,
    running_cluster,
    wait_for,
    wait_until_settled,
)

pytestmark = [pytest.mark.long, pytest.mark.airflow, pytest.mark.cluster, pytest.mark.timeout(900)]

SHARED = ["v6e:2x2"] * 3
"""Two slices for what holds one while it runs, and one that is there for all that only wait to see one."""

QUEUED = "v6e:1x1"
"""A shape that comes when the test says so."""

STOPPED_WITHIN_S = 120.0
"""A minute is what is promised; two cores that do all this at once may take another."""

DAG = """
from datetime import datetime
from airflow.sdk import DAG
from airflow_raytpu.operators import RayTpuJobOperator

def work(dag_id, *, deferrable, how="hold", dag=None, **where):
    with DAG(dag_id, **dag or {{"schedule": None}}):
        RayTpuJobOperator(
            task_id="work",
            run="held.py",
            op_args=[{marks!r}, "{{{{ dag.dag_id }}}}.{{{{ run_id }}}}", how],
            deferrable=deferrable,
            retries=1,
            **where,
        )

for mode, deferrable in (("deferred", True), ("worker", False)):
    work("creating-" + mode, cluster={slow!r}, how="done", deferrable=deferrable)
    work("own-" + mode, slice="v6e:2x2", deferrable=deferrable)
    work("queued-" + mode, cluster={shared!r}, slice="v6e:1x1", how="done", deferrable=deferrable)
    work("running-" + mode, cluster={shared!r}, slice="v6e:2x2", reserve=False, deferrable=deferrable)
    work("holding-" + mode, cluster={shared!r}, slice="v6e:2x2", deferrable=deferrable)
    work("finishing-" + mode, cluster={shared!r}, slice="v6e:2x2", how="finish", reserve=False, deferrable=deferrable)
# Its days are over, so that no run is made but a backfill's.
days = {{"schedule": "@daily", "start_date": datetime(2026, 1, 1), "end_date": datetime(2026, 1, 3), "catchup": False}}
work("backfill", cluster={shared!r}, slice="v6e:2x2", reserve=False, deferrable=True, dag=days)
"""

MANY_WORKERS = {
    "AIRFLOW__CORE__PARALLELISM": "10",
    # The demo's two seconds are for one task or two.
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "5",
}

Rows = dict[tuple[str, str, str], dict[str, Any]]

DAYS = ("2026-01-01T00:00:00+00:00", "2026-01-03T00:00:00+00:00")
ENDED = {"success", "failed"}
CASES = [
    ("creating", "deferred", "failed"),
    ("creating", "deferred", "clear"),
    ("creating", "worker", "failed"),
    ("creating", "worker", "success"),
    ("creating", "worker", "clear"),
    ("creating", "worker", "delete"),
    ("own", "deferred", "delete"),
    ("own", "worker", "failed"),
    ("queued", "deferred", "failed"),
    ("queued", "worker", "clear"),
    ("running", "deferred", "failed"),
    ("running", "deferred", "success"),
    ("running", "deferred", "delete"),
    ("running", "worker", "failed"),
    ("running", "worker", "clear"),
    ("holding", "deferred", "clear"),
    ("finishing", "deferred", "clear"),
    ("finishing", "worker", "delete"),
]
"""Of all that can be put together, each moment with each mode, and each mode with each way of ending."""


@dataclass
class Case:
    """One run, which is to be ended in one *way* at one *moment*."""

    moment: str
    mode: str
    way: str
    run: Run

    @property
    def name(self) -> str:
        """What its programs are called."""
        return f"{self.run.dag_id}.{self.run.run_id}"

    @property
    def key(self) -> tuple[str, str, str]:
        return self.run.dag_id, self.run.run_id, "work"

    def has_come(self, stage: Stage, rows: Rows) -> bool:
        """Whether the moment is there."""
        if rows.get(self.key, {}).get("state") != ("deferred" if self.mode == "deferred" else "running"):
            return False
        if self.mode == "deferred" and not self.is_watched(stage):
            return False
        outbox = self.outbox(stage)
        match self.moment:
            case "creating":
                return any(outbox.glob("*.owner.json"))
            case "own":
                return any(map(self.owns, stage.clusters()))
            case "queued":
                return any(_phase(path) == "waiting for a slice" for path in outbox.glob("*.progress.json"))
            case "finishing":
                # Half a minute is all that a program has to end once it has returned.
                stage.marks.release(self.name)
                return stage.marks.count(self.name, "finishing") == 1
        return stage.marks.count(self.name, "began") == 1

    def is_watched(self, stage: Stage) -> bool:
        """Whether the triggerer has begun with the task's trigger: before that, nobody is told of its end (3.3)."""
        logs = stage.airflow.home.airflow / "logs" / f"dag_id={self.run.dag_id}" / f"run_id={self.run.run_id}"
        return any(logs.glob("task_id=work/*.trigger.*"))

    def outbox(self, stage: Stage) -> Path:
        return stage.airflow.home.storage / self.run.dag_id / "work" / self.run.run_id / "outbox"

    def owns(self, found: Cluster) -> bool:
        return found.record.owner.startswith(f"demo|{self.run.dag_id}|")

    def is_at_rest(self, stage: Stage, jobs: held_work.Jobs) -> bool:
        """Whether what was at work is over: its first attempt is used up, and its program, job and cluster ended."""
        used = any(self.outbox(stage).glob("*.used.json"))
        ended = jobs.get(self.key, {}).get(1, True)
        return used and ended and not stage.marks.at_work(self.name) and not any(map(self.owns, stage.clusters()))

    def end(self) -> bool:
        match self.way:
            case "clear":
                faults.clear(self.run, "work")
            case "delete":
                faults.delete(self.run)
            case state:
                faults.mark(self.run, "work", state)
        return True


@dataclass(frozen=True)
class Stage:
    airflow: RealAirflow
    shared: SimulatedCluster
    slow: Cluster
    marks: Marks

    def clusters(self) -> list[Cluster]:
        return cluster.living(self.shared.root)

    def jobs(self) -> held_work.Jobs:
        return held_work.jobs(held_work.listing(self.shared.found))


def _phase(path: Path) -> str:
    return json.loads(path.read_text())["phase"]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    dags = tmp_path_factory.mktemp("dags")
    marks = Marks(tmp_path_factory.mktemp("marks"))
    marks.put_program(dags)
    # The last slice comes when the test says so.
    with (
        postgres.better_database() as database,
        running_cluster(SHARED[0], [*SHARED[1:], QUEUED], Arrivals(late=1)) as shared,
    ):
        request = cluster_request("slow", "v6e:2x2")
        slow = cluster.start(shared.root, request)
        with beating(shared.root, request):
            supervisor = wait_for(lambda: cluster.attach(shared.root, slow.record.name).record.supervisor)
            supervisor.signal(signal.SIGSTOP)
            names = {"slow": slow.record.name, "shared": shared.request.name, "marks": str(marks.folder)}
            (dags / "kills.py").write_text(DAG.format(**names))
            environment = {**database, **held_work.connection(shared.root), **MANY_WORKERS}
            try:
                with real_airflow(tmp_path_factory.mktemp("airflow") / ".demo", dags, environment) as airflow:
                    yield Stage(airflow, shared, slow, marks)
            finally:
                supervisor.signal(signal.SIGCONT)
                cluster.remove(slow)


@pytest.fixture(scope="module")
def cases(stage: Stage) -> dict[tuple[str, str, str], Case]:
    """Every case, ended at its moment, and at rest."""
    found = {
        (moment, mode, way): Case(moment, mode, way, faults.trigger(stage.airflow, f"{moment}-{mode}", run_id=way))
        for moment, mode, way in CASES
    }

    def rows() -> Rows:
        return faults.rows(stage.airflow)

    held_work.until_each(found, rows, lambda case, seen: case.has_come(stage, seen) and case.end(), 300)
    held_work.until_each(found, stage.jobs, lambda case, seen: case.is_at_rest(stage, seen), STOPPED_WITHIN_S)
    # From here on whoever is to do it again can.
    supervisor = cluster.attach(stage.shared.root, stage.slow.record.name).record.supervisor
    supervisor.signal(signal.SIGCONT)
    stage.shared.make_awaited()
    wait_until_settled(stage.shared.root, cluster_request("slow", "v6e:2x2"))
    again = {key: case for key, case in found.items() if case.way == "clear"}
    held_work.until_each(again, rows, lambda case, seen: seen[case.key]["state"] in ENDED, 240)
    return found


@pytest.fixture(scope="module")
def jobs(stage: Stage, cases) -> held_work.Jobs:
    """The jobs of both clusters, once none is at work any more."""

    def ended() -> held_work.Jobs:
        slow = cluster.attach(stage.shared.root, stage.slow.record.name)
        found = {**stage.jobs(), **held_work.jobs(held_work.listing(slow))}
        return found if all(each for attempts in found.values() for each in attempts.values()) else {}

    return wait_for(ended, STOPPED_WITHIN_S, every_s=1)


@pytest.mark.parametrize("key", CASES, ids="-".join)
def test_what_a_user_ends_is_stopped_and_done_again_only_where_that_was_asked(stage, cases, jobs, key):
    case, marks = cases[key], stage.marks
    again = case.way == "clear"
    submitted = case.moment not in {"creating", "own"}
    assert sorted(jobs.get(case.key, {})) == [*([1] if submitted else []), *([2] if again else [])]
    began, saved = marks.count(case.name, "began") - again, marks.count(case.name, "saved")
    # Who was at work had time to save.
    assert saved == began
    # On a quick machine a cluster of its own may be up by the time that Airflow has the wish.
    if case.moment != "own":
        assert began == (case.moment in {"running", "holding", "finishing"})
    if case.way == "delete":
        assert not faults.exists(case.run)
        return
    row = faults.row(case.run, "work")
    assert (row["state"], row["try_number"]) == ("success" if again else case.way, 1 + again)


def test_a_backfill_that_is_stopped_leaves_the_run_at_work_to_its_user(stage, cases, jobs):
    number = faults.backfill(stage.airflow, "backfill", *DAYS, max_active_runs=1)

    def at_work() -> list[Run]:
        return [run for run in faults.runs(stage.airflow, "backfill") if stage.marks.at_work(f"backfill.{run.run_id}")]

    (run,) = wait_for(at_work, 90, every_s=0.5)
    faults.cancel_backfill(stage.airflow, number)
    assert at_work() == [run]
    faults.mark_run(run, "failed")
    wait_for(lambda: not at_work(), STOPPED_WITHIN_S)
    others = {each.run_id: stage.airflow.api.run_state("backfill", each.run_id) for each in at_rest(stage)}
    assert set(others.values()) == {"failed"}
    assert [path.name.split(".")[1] for path in stage.marks.folder.glob("backfill.*.began-*")] == [run.run_id]


def at_rest(stage: Stage) -> list[Run]:
    def found() -> list[Run]:
        every = faults.runs(stage.airflow, "backfill")
        states = {stage.airflow.api.run_state("backfill", each.run_id) for each in every}
        return every if states <= {"failed", "success"} else []

    return wait_for(found, 60, every_s=0.5)


def test_in_the_end_nothing_is_held_and_no_cluster_of_a_killed_task_lives(stage, cases, jobs):
    def nothing_held() -> bool:
        return held_work.held_groups(held_work.listing(stage.shared.found)) == []

    wait_for(nothing_held, 30, every_s=1)
    assert {each.record.name for each in stage.clusters()} == {stage.shared.request.name, stage.slow.record.name}
