"""What befalls a real Airflow in a test: its processes are stopped and killed, and its users change their minds.

Signals go to one process and no other: ``send(component(airflow, "triggerer"), signal.SIGSTOP)``. What a user does goes
over Airflow's own REST API, as the user interface does it.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.demo import processes
from airflow_raytpu.demo.api import AirflowApi
from airflow_raytpu.model.errors import BackendUnreachable, PlaceError
from tests.real_airflow import RealAirflow, Run
from tests.simulated_cluster import wait_for

ANSWERS_WITHIN_S = 150.0
GONE_WITHIN_S = 20.0


def component(airflow: RealAirflow, name: str, *, alone: bool = False) -> list[ProcessId]:
    """The eldest process of ``scheduler``, ``triggerer``, ``api-server`` or ``dag-processor``, and all below it.

    A machine that hangs stops them all; a process that is killed leaves its children, which *alone* says.
    """
    (pid, *_) = airflow.pids(name)
    own = ProcessId.of(pid)
    assert own
    return [own, *([] if alone else processes.below(pid))]


def worker(airflow: RealAirflow, run: Run, task_id: str) -> list[ProcessId]:
    """The processes that carry out a task now: Airflow's supervisor and, below it, the task; empty where none does."""
    return working_on(airflow, row(run, task_id)["id"])


def working_on(airflow: RealAirflow, ti_id: str) -> list[ProcessId]:
    """As :func:`worker`, for one try, by its own ``id``: that of a try that is over lives on in nobody's title."""
    title = f"airflow worker -- {ti_id}"
    titles = {title, title.replace(" -- ", " -- LocalExecutor: ")}
    return [each for each in processes.marked(airflow.home.root) if _title(each.pid) in titles]


def send(targets: Iterable[ProcessId], number: signal.Signals) -> None:
    """Send a signal to each of *targets* that is alive, in their order."""
    for each in targets:
        each.signal(number)


def kill(targets: Iterable[ProcessId]) -> None:
    """SIGKILL *targets* and wait until none is left."""
    doomed = list(targets)
    # A supervisor that lives a little longer than its task would still tell Airflow of its end.
    send(doomed, signal.SIGSTOP)
    send(doomed, signal.SIGKILL)
    wait_for(lambda: not any(each.alive() for each in doomed), GONE_WITHIN_S)


def kill_worker(airflow: RealAirflow, run: Run, task_id: str) -> None:
    """What the loss of a worker's machine does: supervisor and task are gone at once."""
    found = worker(airflow, run, task_id)
    assert found, f"no worker carries out {task_id}"
    kill(found)


def trigger(
    airflow: RealAirflow,
    dag_id: str,
    conf: Mapping[str, Any] | None = None,
    *,
    run_id: str | None = None,
    logical_date: str | None = None,
) -> Run:
    """A new run, as a user starts one.

    :param logical_date: an ISO date with its time zone.
    :raises PlaceError: there is one with this *run_id* or *logical_date* already.
    """
    path = _unpaused(airflow, dag_id)
    run = Run(airflow.api, dag_id, run_id or f"manual__{secrets.token_hex(4)}")
    wanted = {"logical_date": logical_date, "conf": dict(conf or {}), "dag_run_id": run.run_id}

    def made() -> bool:
        try:
            airflow.api._call("POST", f"{path}/dagRuns", wanted)
        except BackendUnreachable:
            return exists(run)
        return True

    wait_for(made, ANSWERS_WITHIN_S, every_s=1)
    return run


def mark(run: Run, task_id: str, state: str) -> None:
    """Mark a task ``failed``, ``success`` or ``skipped``."""
    _ask(run.api, "PATCH", _task(run, task_id), {"new_state": state})


def clear(run: Run, *task_ids: str) -> None:
    """Have tasks done again."""
    wish = {"dry_run": False, "only_failed": False, "dag_run_id": run.run_id, "task_ids": list(task_ids)}
    _ask(run.api, "POST", f"/api/v2/dags/{quote(run.dag_id)}/clearTaskInstances", wish)


def mark_run(run: Run, state: str) -> None:
    """Mark a run ``failed``, ``success`` or ``queued``, and with it each task that is at work."""
    _ask(run.api, "PATCH", _run(run), {"state": state})


def delete(run: Run) -> None:
    """Delete a run. Airflow refuses that while the run goes on (3.3), so it is marked failed just before."""
    mark_run(run, "failed")
    _ask(run.api, "DELETE", _run(run))


def exists(run: Run) -> bool:
    try:
        _ask(run.api, "GET", _run(run))
    except PlaceError:
        return False
    return True


def backfill(airflow: RealAirflow, dag_id: str, first: str, last: str, **options: Any) -> int:
    """Have the runs from *first* to *last* (ISO dates) made; the backfill's id."""
    _unpaused(airflow, dag_id)
    wanted = {"dag_id": dag_id, "from_date": first, "to_date": last, **options}
    return int(airflow.api._call("POST", "/api/v2/backfills", wanted)["id"])


def cancel_backfill(airflow: RealAirflow, number: int) -> None:
    """No further runs, and those that wait end; one that is at work goes on (3.3)."""
    _ask(airflow.api, "PUT", f"/api/v2/backfills/{number}/cancel")


def runs(airflow: RealAirflow, dag_id: str) -> list[Run]:
    """Every run of a DAG, the eldest first."""
    path = f"/api/v2/dags/{quote(dag_id)}/dagRuns?order_by=id&limit=100"
    return [Run(airflow.api, dag_id, each["dag_run_id"]) for each in _ask(airflow.api, "GET", path)["dag_runs"]]


def row(run: Run, task_id: str) -> dict[str, Any]:
    """All that Airflow says of a task now: ``state``, ``try_number``, ``max_tries``, ``id`` and more."""
    return dict(_ask(run.api, "GET", _task(run, task_id)))


def rows(airflow: RealAirflow) -> dict[tuple[str, str, str], dict[str, Any]]:
    """As :func:`row` of every task of every run, by DAG, run and task, with one question to Airflow."""
    found = _ask(airflow.api, "GET", "/api/v2/dags/~/dagRuns/~/taskInstances?limit=100")["task_instances"]
    return {(each["dag_id"], each["dag_run_id"], each["task_id"]): each for each in found}


def log_lines(run: Run, task_id: str, try_number: int) -> list[str]:
    """What one try wrote, on a worker and in the triggerer."""
    content = _ask(run.api, "GET", f"{_task(run, task_id)}/logs/{try_number}?full_content=true")["content"]
    return [each if isinstance(each, str) else str(each.get("event", "")) for each in content]


def wipe_state(run: Run, task_id: str) -> None:
    """Empty a task's ``task_state_store``."""
    _ask(run.api, "DELETE", f"{_task(run, task_id)}/state-store")


def _ask(api: AirflowApi, method: str, path: str, body: Any = None) -> Any:
    """One call that may be repeated, since an Airflow in trouble does not always answer.

    :raises PlaceError: the answer is a refusal.
    """

    def answer() -> tuple[Any] | None:
        try:
            return (api._call(method, path, body),)
        except BackendUnreachable:
            return None

    return wait_for(answer, ANSWERS_WITHIN_S, every_s=1)[0]


def _unpaused(airflow: RealAirflow, dag_id: str) -> str:
    """The path of a DAG that Airflow knows, and runs."""
    path = f"/api/v2/dags/{quote(dag_id)}"
    wait_for(lambda: airflow.api.has_dag(dag_id), within_s=60, every_s=0.5)
    _ask(airflow.api, "PATCH", path, {"is_paused": False})
    return path


def _run(run: Run) -> str:
    return f"/api/v2/dags/{quote(run.dag_id)}/dagRuns/{quote(run.run_id)}"


def _task(run: Run, task_id: str) -> str:
    return f"{_run(run)}/taskInstances/{quote(task_id)}"


def _title(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has just ended
        return ""
    return words[0].decode(errors="replace").strip()
