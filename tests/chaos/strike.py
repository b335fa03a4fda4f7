"""The faults themselves. Each is done for real, and says when it began, when it was over, and what it met."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.model.errors import BackendUnreachable, PlaceError
from tests import airflow_faults
from tests.airflow_faults import component, kill, send
from tests.chaos import diaries, outside
from tests.chaos.draw import Fault, Round
from tests.chaos.moments import own_clusters
from tests.chaos.stage import HEARTBEAT_TIMEOUT_S, Stage, processes_of, tables_of
from tests.real_airflow import Run
from tests.simulated_cluster import wait_for

_HANG_S = HEARTBEAT_TIMEOUT_S + 12
_TRIGGERER_HANG_S = 20.0
"""Four times the silence after which its tasks pass to another one (``tests.real_airflow.QUICK``)."""

_WORKER_WITHIN_S = 40.0

_AWAY_S = 3.0
"""How long a component that was killed is away."""


class Missed(Exception):
    """There was nothing left to strike."""


@dataclass(frozen=True, slots=True)
class Strike:
    """:param at: when it hit; *until* when what it took was there again, as far as that is the fault's own doing."""

    at: float
    until: float
    what: str


def strike(stage: Stage, plan: Round, run: Run, task_id: str) -> Strike:
    """Do what *plan* says to the work of *run*.

    :raises Missed: it was over.
    """
    if _over(stage, run, task_id):
        raise Missed("the task had ended")
    at = time.time()
    what = _DOERS[plan.fault](stage, plan, run, task_id)
    return Strike(at, time.time(), what)


def _over(stage: Stage, run: Run, task_id: str) -> bool:
    now = stage.tables.task(run.dag_id, run.run_id, task_id)
    return now is None or now.over


def _nothing(_stage: Stage, _plan: Round, _run: Run, _task_id: str) -> str:
    return "nothing"


def _worker(stage: Stage, run: Run, task_id: str) -> list[ProcessId]:
    """The processes that carry the task out. A deferred one comes to a worker some seconds after its end."""
    limit = time.time() + _WORKER_WITHIN_S
    while time.time() < limit and not _over(stage, run, task_id):
        if found := airflow_faults.worker(stage.airflow, run, task_id):
            return found
        time.sleep(0.1)
    raise Missed("no worker carries it out")


def _kill_worker(stage: Stage, _plan: Round, run: Run, task_id: str) -> str:
    found = _worker(stage, run, task_id)
    kill(found)
    return _pids("worker", found)


def _hang_worker(stage: Stage, _plan: Round, run: Run, task_id: str) -> str:
    found = _worker(stage, run, task_id)
    send(found, signal.SIGSTOP)
    try:
        time.sleep(_HANG_S)
    finally:
        send(reversed(found), signal.SIGCONT)
    return _pids("worker", found)


def _replace(name: str, number: signal.Signals, *, alone: bool) -> Callable[..., str]:
    def do(stage: Stage, _plan: Round, _run: Run, _task_id: str) -> str:
        with stage.lock:
            found = component(stage.airflow, name, alone=alone)
            if number is signal.SIGKILL:
                kill(found)
            else:
                send(found[:1], number)
                wait_for(lambda: not found[0].alive(), 60)
            time.sleep(_AWAY_S)
            stage.airflow.start(name)
        return _pids(name, found)

    return do


def _hang_triggerer(stage: Stage, _plan: Round, _run: Run, _task_id: str) -> str:
    with stage.lock:
        found = component(stage.airflow, "triggerer")
        send(found, signal.SIGSTOP)
        try:
            stage.airflow.start("triggerer")
            time.sleep(_TRIGGERER_HANG_S)
        finally:
            send(reversed(found), signal.SIGCONT)
    return _pids("triggerer", found)


def _slice_of(stage: Stage, plan: Round) -> list[ProcessId]:
    """The raylets of the slice on which the newest living program is."""
    starts = [start for start in diaries.read(stage.diary(plan.token)) if start.node and start.alive()]
    if not starts:
        raise Missed("no program runs")
    for name in own_clusters(stage, plan) if plan.own else [stage.shared.name]:
        found = cluster.attach(stage.clusters, name)
        address = tables_of(found).addresses().get(starts[-1].node) if found else None
        for part in found.record.slices if found else ():
            if address in {host.ip for host in part.hosts}:
                raylets = [ProcessId.of(host.raylet) for host in part.hosts if host.alive and host.raylet]
                return [each for each in raylets if each]
    raise Missed("its slice is gone")


def _kill_host(stage: Stage, plan: Round, _run: Run, _task_id: str) -> str:
    raylets = _slice_of(stage, plan)
    kill(raylets[-1:])
    return _pids(f"one raylet of {len(raylets)}", raylets[-1:])


def _kill_slice(stage: Stage, plan: Round, _run: Run, _task_id: str) -> str:
    raylets = _slice_of(stage, plan)
    kill(raylets)
    return _pids("all raylets of the slice", raylets)


def _kill_driver(stage: Stage, plan: Round, _run: Run, _task_id: str) -> str:
    names = stage.names(plan.dag_id, plan.token)
    with contextlib.suppress(TimeoutError):
        # It comes some seconds after its submission.
        found = wait_for(lambda: [each for name in names for each in outside.driver(name)], 20, every_s=0.5)
        kill(found)
        return _pids("driver", found)
    raise Missed("no driver runs")


def _kill_head(stage: Stage, names: list[str]) -> str:
    for name in reversed(names):
        found = cluster.attach(stage.clusters, name)
        servers = [each for each in processes_of(found) if _is_gcs(each)] if found else []
        if servers:
            kill(servers)
            return _pids(f"head of {name}", servers)
    raise Missed("there is no head")


def _kill_own_head(stage: Stage, plan: Round, _run: Run, _task_id: str) -> str:
    names = own_clusters(stage, plan)
    if not names:
        raise Missed("there is no cluster")

    def struck() -> str:
        with contextlib.suppress(Missed):
            return _kill_head(stage, names)
        return ""

    # A cluster that is just being made has no head yet.
    try:
        return str(wait_for(struck, 30, every_s=0.5))
    except TimeoutError as error:
        raise Missed("there is no head") from error


def _kill_shared_head(stage: Stage, _plan: Round, _run: Run, _task_id: str) -> str:
    what = _kill_head(stage, [stage.shared.name])
    stage.version = ""
    return what


def _pids(what: str, found: list[ProcessId]) -> str:
    return f"{what}, pid {', '.join(str(each.pid) for each in found)}"


def _is_gcs(process: ProcessId) -> bool:
    with contextlib.suppress(OSError):
        return b"gcs_server" in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0]
    return False


def _user(do: Callable[[Run, str], object]) -> Callable[..., str]:
    def ask(_stage: Stage, _plan: Round, run: Run, task_id: str) -> str:
        # The server may be busy; a user would ask again.
        for left in reversed(range(3)):
            try:
                do(run, task_id)
                break
            except (BackendUnreachable, PlaceError):
                if not left:
                    raise
                time.sleep(1)
        return task_id

    return ask


_DOERS: dict[Fault, Callable[[Stage, Round, Run, str], str]] = {
    Fault.NONE: _nothing,
    Fault.WORKER_KILL: _kill_worker,
    Fault.WORKER_HANG: _hang_worker,
    Fault.TRIGGERER_KILL: _replace("triggerer", signal.SIGKILL, alone=True),
    Fault.TRIGGERER_TERM: _replace("triggerer", signal.SIGTERM, alone=True),
    Fault.TRIGGERER_HANG: _hang_triggerer,
    Fault.SCHEDULER_KILL: _replace("scheduler", signal.SIGKILL, alone=True),
    Fault.API_KILL: _replace("api-server", signal.SIGKILL, alone=False),
    Fault.HOST_KILL: _kill_host,
    Fault.SLICE_KILL: _kill_slice,
    Fault.DRIVER_KILL: _kill_driver,
    Fault.OWN_HEAD_KILL: _kill_own_head,
    Fault.SHARED_HEAD_KILL: _kill_shared_head,
    Fault.STATE_WIPE: _user(airflow_faults.wipe_state),
    Fault.MARK_FAILED: _user(lambda run, task_id: airflow_faults.mark(run, task_id, "failed")),
    Fault.MARK_SUCCESS: _user(lambda run, task_id: airflow_faults.mark(run, task_id, "success")),
    Fault.CLEAR: _user(airflow_faults.clear),
    Fault.DELETE_RUN: _user(lambda run, _: airflow_faults.delete(run)),
}
