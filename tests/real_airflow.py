"""A real Airflow for tests: four components on free ports, each of which can be killed and started again.

As a script it is the process that owns them: ``python real_airflow.py LOGS``. It takes commands on its standard input,
``start triggerer`` and ``pids triggerer``, answers each with the pids of that component in a line of JSON, and ends all
when the input is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_raytpu.demo import processes, settings
from airflow_raytpu.demo.api import AirflowApi
from airflow_raytpu.demo.components import Launcher
from airflow_raytpu.demo.home import DemoHome
from airflow_raytpu.model.errors import BackendUnreachable, PlaceError
from tests.simulated_cluster import wait_for

UP_WITHIN_S = 120.0

QUICK = {
    # A dead triggerer's tasks pass to another one when it has been silent for so long; by default 30 s.
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
}


@dataclass(frozen=True)
class RealAirflow:
    home: DemoHome
    api: AirflowApi
    owner: subprocess.Popen[str]

    def pids(self, component: str) -> list[int]:
        """Its living processes, the eldest first."""
        return self._tell(f"pids {component}")

    def start(self, component: str) -> int:
        """Start one more of it; the pid."""
        return self._tell(f"start {component}")[-1]

    def kill_and_restart(self, component: str) -> None:
        """SIGKILL one component and start it again, as a new process."""
        (pid,) = self.pids(component)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: pid not in self.pids(component))
        self.start(component)

    def run(self, dag_id: str) -> Run:
        wait_for(lambda: self.api.has_dag(dag_id), within_s=60, every_s=0.5)
        return Run(self.api, dag_id, self.api.trigger(dag_id))

    def _tell(self, command: str) -> list[int]:
        stdin, stdout = self.owner.stdin, self.owner.stdout
        assert stdin
        assert stdout
        stdin.write(command + "\n")
        stdin.flush()
        return json.loads(stdout.readline())


@dataclass(frozen=True)
class Run:
    """One run of a DAG."""

    api: AirflowApi
    dag_id: str
    run_id: str

    def states(self) -> dict[str, str | None]:
        return {row["task_id"]: row["state"] for row in self.api.task_instances(self.dag_id, self.run_id)}

    def end(self, within_s: float) -> str:
        wait_for(lambda: self.api.run_state(self.dag_id, self.run_id) in {"success", "failed"}, within_s, every_s=0.5)
        return self.api.run_state(self.dag_id, self.run_id)

    def result(self, task_id: str) -> Any:
        return self.api.result(self.dag_id, self.run_id, task_id)

    def last_words(self, task_id: str) -> str:
        return "\n".join(self.api.last_words(self.dag_id, self.run_id, task_id, 1))

    def log(self, home: DemoHome, task_id: str) -> str:
        """All that the task and its trigger wrote."""
        folder = home.airflow / "logs" / f"dag_id={self.dag_id}" / f"run_id={self.run_id}" / f"task_id={task_id}"
        return "\n".join(path.read_text() for path in sorted(folder.iterdir()))


@contextlib.contextmanager
def real_airflow(root: Path, dags: Path, environment: Mapping[str, str]) -> Iterator[RealAirflow]:
    """A healthy Airflow in *root* with the DAGs of *dags*; nothing of it is left afterwards.

    :param environment: what its processes have on top of the demo's own.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = DemoHome(root=root, dags=dags, port=port)
    home.prepare()
    password = settings.write(home)
    api = AirflowApi(f"http://127.0.0.1:{port}", settings.USER, password)
    repository = Path(__file__).parents[1]
    with (home.logs / "start.log").open("ab") as log:
        owner = subprocess.Popen(
            [sys.executable, "-m", "tests.real_airflow", str(home.logs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**home.environment(os.environ), "PYTHONPATH": str(repository), **QUICK, **environment},
            text=True,
        )
    assert owner.stdin is not None
    try:
        wait_for(lambda: healthy(api, owner), UP_WITHIN_S, every_s=0.25)
        api.log_in()
        yield RealAirflow(home, api, owner)
    finally:
        owner.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            owner.wait(timeout=30)
        assert owner.stdout
        owner.stdout.close()
        processes.end(lambda: processes.marked(home.root), hurry=lambda: True)
        home.remove()


def healthy(api: AirflowApi, owner: subprocess.Popen[str]) -> bool:
    assert owner.poll() is None, "Airflow ended"
    try:
        api.wake()
        return api.health()
    except (BackendUnreachable, PlaceError):
        return False


def main() -> None:
    processes.adopt_orphans()
    processes.end_with_parent(os.getppid())
    answers = os.dup(1)
    # Airflow prints while it starts.
    os.dup2(2, 1)
    launcher = Launcher(Path(sys.argv[1]), answers)
    try:
        launcher.start_all()
        for command in sys.stdin:
            verb, component = command.split()
            if verb == "start":
                launcher.start(component)
            os.write(answers, json.dumps(living(launcher, component)).encode() + b"\n")
    finally:
        processes.end(lambda: processes.below(os.getpid()))


def living(launcher: Launcher, component: str) -> list[int]:
    """The pids of *component*, without those that have ended."""
    for pid in processes.reap():
        launcher.running.pop(pid, None)
    return [pid for pid, name in launcher.running.items() if name == component]


if __name__ == "__main__":
    main()
