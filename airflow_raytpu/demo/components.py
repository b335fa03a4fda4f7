"""Airflow's four components, and an end to all when one ends: ``python -m airflow_raytpu.demo.components LOGS``.

It imports Airflow once and forks, where four commands would import it four times: 7 CPU seconds to a healthy Airflow
instead of 17 (measured, 2 cores), and the four share their memory. Each child runs Airflow's own command line.
Started by :mod:`airflow_raytpu.demo.guardian`; says on standard output, in one JSON line, which component ended.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from airflow_raytpu.demo import processes

COMPONENTS = {
    "api-server": ["api-server"],
    # Logs are read from the disk they are on; the log servers would listen on every interface.
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}


class Launcher:
    """Forks the components and waits for the first to end.

    :param logs: folder for one log each.
    :param events: file descriptor on which that end is told, closed in the components.
    """

    def __init__(self, logs: Path, events: int) -> None:
        self.logs = logs
        self.events = events
        self.running: dict[int, str] = {}

    def start_all(self) -> None:
        _import_airflow()
        _create_database()
        gc.freeze()
        for name in COMPONENTS:
            self.start(name)

    def start(self, name: str) -> None:
        """Fork one component; it does not outlive this process."""
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self.running[pid] = name
            return
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            processes.end_with_parent(parent)
            os.close(self.events)
            log = os.open(self.logs / f"{name}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            status = _run(COMPONENTS[name])
        finally:
            # Whatever happened, the parent's stack must not be unwound in a child.
            os._exit(status)

    def wait_for_one(self) -> None:
        """Return when a component has ended, having told which."""
        while True:
            pid, status = os.wait()
            # Adopted orphans end here too.
            if pid in self.running:
                event = {"component": self.running[pid], "status": os.waitstatus_to_exitcode(status)}
                os.write(self.events, json.dumps(event).encode() + b"\n")
                return


def main() -> int:
    """Start all, wait for the first to end, end the others; 0 when told to end."""
    processes.adopt_orphans()
    processes.end_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, _told)
    events = os.dup(1)
    # Airflow prints while it starts.
    os.dup2(2, 1)
    launcher = Launcher(Path(sys.argv[1]), events)
    try:
        launcher.start_all()
        launcher.wait_for_one()
        return 1
    except _Told:
        return 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        processes.end(lambda: processes.below(os.getpid()))


def _run(arguments: list[str]) -> int:
    from airflow.__main__ import main as airflow  # noqa: PLC0415 - after the fork

    sys.argv = ["airflow", *arguments]
    try:
        airflow()  # type: ignore[no-untyped-call]
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the log of the component is where its own failure belongs
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _import_airflow() -> None:
    """What the components, their workers and every task need, once for all of them."""
    for name in (
        "airflow.cli.cli_parser",
        "airflow.cli.commands.scheduler_command",
        "airflow.cli.commands.triggerer_command",
        "airflow.cli.commands.dag_processor_command",
        "airflow.executors.local_executor",
        "airflow.sdk.execution_time.supervisor",
        "airflow.sdk.execution_time.task_runner",
    ):
        importlib.import_module(name)


def _create_database() -> None:
    from airflow import settings  # noqa: PLC0415
    from airflow.utils import db  # noqa: PLC0415

    db.initdb()
    # A forked child must open its own connections.
    if settings.engine is not None:
        settings.engine.dispose()


class _Told(BaseException):
    """Somebody asked us to end."""


def _told(_number: int, _frame: FrameType | None) -> None:
    raise _Told


if __name__ == "__main__":
    sys.exit(main())
