"""Airflow's own processes are killed, stopped and started again, while tasks wait and work: nothing remote is lost.

One run has a task for each fault, and all of them are on one cluster; what is done to Airflow as a whole, all of them
go through. Timeouts of Airflow's are shortened, so that it sees soon what it would see anyhow.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from airflow_raytpu.backends.simulated import cluster
from tests import airflow_faults as faults
from tests import held_work, postgres
from tests.held_work import Marks
from tests.loopback_proxy import Proxy, proxy
from tests.real_airflow import RealAirflow, Run, real_airflow
from tests.simulated_cluster import (
    SimulatedCluster,
    beating,
    cluster_request,
    running_cluster,
    wait_for,
)

pytestmark = [pytest.mark.long, pytest.mark.airflow, pytest.mark.cluster, pytest.mark.timeout(600)]

SOON = {
    # A worker that is silent for so long is given up; by default 300 s.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    # What a dead scheduler left is taken over so soon; by default 30 s and 300 s.
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__CORE__PARALLELISM": "12",
    # The demo's two seconds are for one task or two.
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "5",
}

DAG = """
import time
from datetime import timedelta
from pathlib import Path
from airflow.sdk import DAG
from airflow_raytpu.operators import RayTpuJobOperator

MARKS = Path({marks!r})

class StopsAtTheEnd(RayTpuJobOperator):
    '''The first try stands still where the deferral is over, before or behind what the operator does there.'''

    def finish(self, context, event):
        if self.task_id == "resumed":
            self.stand()
        value = super().finish(context, event)
        if self.task_id == "told":
            self.stand()
        return value

    def stand(self):
        mark = MARKS / (self.task_id + ".stands")
        if not mark.exists():
            mark.touch()
            time.sleep(600)

def work(task_id, cluster={shared!r}, how="hold", kind=RayTpuJobOperator, **settings):
    settings = {{"retries": 5, "retry_delay": timedelta(seconds=1), **settings}}
    arguments = [str(MARKS), task_id, how]
    kind(task_id=task_id, run="held.py", op_args=arguments, cluster=cluster, reserve=False, **settings)

with DAG("components", schedule=None):
    work("before", cluster={slow!r}, deferrable=False)
    work("asked", conn_id="asked", deferrable=False)
    work("answered", conn_id="answered", deferrable=False)
    work("noted", deferrable=False)
    work("resumed", how="done", kind=StopsAtTheEnd)
    work("told", how="done", kind=StopsAtTheEnd)
    work("paused", deferrable=False)
    work("kept", deferrable=False)
    work("watched")

with DAG("late", schedule=None):
    work("late", execution_timeout=timedelta(seconds=60), retries=0)

with DAG("bounded", schedule=None, dagrun_timeout=timedelta(seconds=60)):
    work("bounded")
"""

KILLED = ("before", "asked", "answered", "noted", "resumed", "told")
"""Tasks whose worker is killed, each at another point."""

HELD = ("before", "asked", "answered", "noted", "paused", "kept", "watched")
"""Tasks whose programs go on until the test lets them end."""


@dataclass(frozen=True)
class Stage:
    airflow: RealAirflow
    shared: SimulatedCluster
    slow: cluster.Cluster
    marks: Marks
    asked: Proxy
    answered: Proxy

    def jobs(self) -> held_work.Jobs:
        return held_work.jobs(held_work.listing(self.shared.found))

    def slow_jobs(self) -> held_work.Jobs:
        slow = cluster.attach(self.shared.root, self.slow.record.name)
        assert slow
        return held_work.jobs(held_work.listing(slow))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    dags, mirrors = tmp_path_factory.mktemp("dags"), tmp_path_factory.mktemp("mirrors")
    marks = Marks(tmp_path_factory.mktemp("marks"))
    marks.put_program(dags)
    with postgres.better_database() as database, running_cluster("v6e:2x2") as shared:
        port = int(shared.facts["dashboard"].rpartition(":")[2])
        request = cluster_request("slow", "v6e:2x2")
        with proxy(port) as asked, proxy(port) as answered, beating(shared.root, request):
            environment = {**database, **held_work.connection(shared.root), **SOON}
            for name, way in (("asked", asked), ("answered", answered)):
                held_work.show_through(shared.found, way.port, mirrors / name)
                environment |= held_work.connection(mirrors / name, name)
            slow = cluster.start(shared.root, request)
            supervisor = wait_for(lambda: cluster.attach(shared.root, slow.record.name).record.supervisor)
            supervisor.signal(signal.SIGSTOP)
            names = {"slow": slow.record.name, "shared": shared.request.name, "marks": str(marks.folder)}
            (dags / "components.py").write_text(DAG.format(**names))
            try:
                with real_airflow(tmp_path_factory.mktemp("airflow") / ".demo", dags, environment) as airflow:
                    yield Stage(airflow, shared, slow, marks, asked, answered)
            finally:
                supervisor.signal(signal.SIGCONT)
                cluster.remove(slow)


@dataclass(frozen=True)
class Runs:
    all: Run
    late: Run
    bounded: Run


@pytest.fixture(scope="module")
def runs(stage: Stage) -> Runs:
    """The runs when all faults are over, and they have ended."""
    airflow, marks = stage.airflow, stage.marks
    late_request, no_answer = stage.asked.hold("requests"), stage.answered.hold("answers")
    found = Runs(*(faults.trigger(airflow, dag_id) for dag_id in ("components", "late", "bounded")))
    run = found.all
    wait_for(lambda: all(has_come(stage, run, task_id) for task_id in (*KILLED, *HELD)), 150, every_s=0.5)
    stage.asked.let_pass()
    stage.answered.let_pass()
    for task_id in KILLED:
        faults.kill_worker(airflow, run, task_id)
        faults.wipe_state(run, task_id)
    no_answer.set()
    paused = faults.row(run, "paused")["id"]
    hung = faults.working_on(airflow, paused)
    faults.send(hung, signal.SIGSTOP)
    slow = cluster.attach(stage.shared.root, stage.slow.record.name)
    assert slow
    assert slow.record.supervisor
    slow.record.supervisor.signal(signal.SIGCONT)
    lose_triggerers(airflow, run)
    taken_over = ("before", "asked", "answered", "noted", "paused")
    wait_for(lambda: all(at_work_again(stage, run, task_id) for task_id in taken_over), 150, every_s=0.5)
    # Asked for by a worker that has long been dead: it is the same job.
    late_request.set()
    faults.send(hung, signal.SIGCONT)
    wait_for(lambda: not faults.working_on(airflow, paused), 90, every_s=0.5)
    lose_scheduler(airflow, run)
    for task_id in HELD:
        marks.release(task_id)
    for each in (found.all, found.late, found.bounded):
        each.end(150)
    return found


def has_come(stage: Stage, run: Run, task_id: str) -> bool:
    """Whether the task is where its fault is to befall it."""
    outbox = stage.airflow.home.storage / run.dag_id / task_id / run.run_id / "outbox"
    match task_id:
        case "before":
            return any(outbox.glob("*.owner.json"))
        case "asked":
            return b"POST /api/jobs/" in stage.asked.heard
        case "answered":
            return (run.dag_id, run.run_id, task_id) in stage.jobs()
        case "resumed" | "told":
            return (stage.marks.folder / f"{task_id}.stands").exists()
        case "watched":
            return stage.marks.count(task_id, "began") == 1 and faults.row(run, task_id)["state"] == "deferred"
    return stage.marks.count(task_id, "began") == 1


def at_work_again(stage: Stage, run: Run, task_id: str) -> bool:
    row = faults.row(run, task_id)
    return row["state"] == "running" and row["try_number"] > 1 and stage.marks.at_work(task_id)


def lose_triggerers(airflow: RealAirflow, run: Run) -> None:
    """One is killed, one is told to end, and one hangs until another has its triggers."""
    watcher = watched_by(run)
    faults.kill(faults.component(airflow, "triggerer"))
    airflow.start("triggerer")
    watcher = passed_on(run, watcher)

    (pid,) = airflow.pids("triggerer")
    airflow.start("triggerer")
    faults.send(faults.component(airflow, "triggerer", alone=True), signal.SIGTERM)
    wait_for(lambda: pid not in airflow.pids("triggerer"), 60)
    watcher = passed_on(run, watcher)

    hung = faults.component(airflow, "triggerer")
    airflow.start("triggerer")
    faults.send(hung, signal.SIGSTOP)
    passed_on(run, watcher)
    faults.send(hung, signal.SIGCONT)
    # That one has lost its triggers, and Airflow takes this for a user's wish.
    wait_for(lambda: "is left running: another triggerer watches it" in run.log(airflow.home, "watched"), 90)


def watched_by(run: Run) -> int | None:
    """The triggerer that has the task's trigger now."""
    return (faults.row(run, "watched")["triggerer_job"] or {}).get("id")


def passed_on(run: Run, watcher: int | None) -> int:
    """The triggerer that has taken the task's trigger from *watcher*."""
    return wait_for(lambda: (now := watched_by(run)) != watcher and now, 90, every_s=0.5)


def lose_scheduler(airflow: RealAirflow, run: Run) -> None:
    """It is killed, which leaves its workers at work; the next one has their tasks tried again."""
    orphan = faults.row(run, "kept")
    faults.kill(faults.component(airflow, "scheduler", alone=True))
    airflow.start("scheduler")
    wait_for(lambda: faults.row(run, "kept")["try_number"] > orphan["try_number"], 120, every_s=0.5)
    wait_for(lambda: faults.row(run, "kept")["state"] == "running", 120, every_s=0.5)
    wait_for(lambda: not faults.working_on(airflow, orphan["id"]), 90, every_s=0.5)


@pytest.mark.parametrize("task_id", [*KILLED, "paused", "kept", "watched"])
def test_a_task_has_one_job_whatever_becomes_of_airflow(stage, runs, task_id):
    row = faults.row(runs.all, task_id)
    assert row["state"] == "success"
    assert row["try_number"] == 1 if task_id == "watched" else row["try_number"] > 1
    found = stage.slow_jobs() if task_id == "before" else stage.jobs()
    assert found[runs.all.dag_id, runs.all.run_id, task_id] == {1: True}
    counts = [stage.marks.count(task_id, what) for what in ("began", "saved", "done")]
    assert counts == [1, 0, 1]


@pytest.mark.parametrize("task_id", ["paused", "kept"])
def test_a_worker_that_was_given_up_and_lives_leaves_the_work_to_the_next(stage, runs, task_id):
    assert "is left running: " in runs.all.log(stage.airflow.home, task_id)


@pytest.mark.parametrize("name", ["late", "bounded"])
def test_a_time_that_is_over_while_deferred_ends_the_remote_work(stage, runs, name):
    run = getattr(runs, name)
    assert stage.airflow.api.run_state(run.dag_id, run.run_id) == "failed"
    wait_for(lambda: stage.jobs()[run.dag_id, run.run_id, name] == {1: True}, 120, every_s=1)
    wait_for(lambda: not stage.marks.at_work(name), 30)
    assert stage.marks.count(name, "done") == 0


def test_the_end_of_a_task_in_time_says_which_time_it_was(stage, runs):
    assert "total" in runs.late.last_words("late")
