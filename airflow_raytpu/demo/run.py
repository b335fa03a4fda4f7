"""The flow of ``airflow-raytpu demo``: check, start Airflow, run the DAG and show it, end everything."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from airflow_raytpu.backends.simulated.processes import wait_until
from airflow_raytpu.demo import checks, lock, processes, settings, summary, watch
from airflow_raytpu.demo.api import AirflowApi
from airflow_raytpu.demo.home import DemoHome
from airflow_raytpu.demo.running import RunningAirflow
from airflow_raytpu.demo.screen import Screen, clock_text, open_screen
from airflow_raytpu.demo.stopping import Stopped, signals_as_errors
from airflow_raytpu.model.errors import BackendUnreachable, StartTimeout, TotalTimeout

DAG_ID = "digits"

_POLL_S = 1.0
_DAG_LIMIT_S = 40.0
_RUN_LIMIT_S = 1800.0
_STOP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the caller wants.

    :param stay: leave Airflow up after the run until Ctrl-C.
    :param keep: start on the database and storage of the last demo, so that its runs are still in the UI.
    """

    stay: bool
    keep: bool = False


def run(home: DemoHome, wish: Wish, console: Console) -> int:
    """Run the demo; its exit status: 0 when the DAG run succeeded.

    :raises RayTpuError: it could not be started, or Airflow broke down.
    """
    checks.check_platform()
    with signals_as_errors(), lock.held(home):
        try:
            # First, for they may hold the port.
            _end_leftovers(home, console)
            return Demo(replace(home, port=checks.choose_port(home.port)), wish, console).run()
        except Stopped as stopped:
            return stopped.status


def clean(home: DemoHome, console: Console) -> None:
    """End what is left of a demo in *home*, a running one too, and remove its files."""
    owner = lock.owner(home)
    if owner and owner.signal(signal.SIGTERM):
        console.print(f"Ending the demo that runs (pid {owner.pid}).", highlight=False)
        wait_until(lambda: not owner.alive(), _STOP_S)
    _end_leftovers(home, console)
    home.remove()
    console.print("Nothing of the demo is left.", highlight=False)


class Demo:
    """One demo, from the checks that need its folders to the last process."""

    def __init__(self, home: DemoHome, wish: Wish, console: Console) -> None:
        self.home, self.wish, self.console = home, wish, console
        self.began = time.monotonic()
        self.parent = os.getppid()
        self.api = AirflowApi(f"http://127.0.0.1:{home.port}", "", "")
        self.login = ""
        self._instances: list[dict[str, Any]] = []

    def run(self) -> int:
        self.home.prepare(keep=self.wish.keep)
        checks.check_disk(self.home.root, self.home.simulated)
        if warning := checks.memory_warning():
            self.console.print(f"Note: {warning}", highlight=False)
        password = settings.write(self.home)
        self.login = summary.access(self.home, settings.USER, password)
        self.api = AirflowApi(f"http://127.0.0.1:{self.home.port}", settings.USER, password)
        airflow = RunningAirflow.start(self.home)
        try:
            return self._use(airflow)
        except Stopped as stopped:
            self.console.print("Stopping." if stopped.status else "", highlight=False)
            raise
        finally:
            airflow.stop()
            self.console.print("Stopped; nothing is left running.", highlight=False)

    def _use(self, airflow: RunningAirflow) -> int:
        with open_screen(self.console) as screen:
            self._start(airflow, screen)
            run_id = self.api.trigger(DAG_ID)
            tasks = self._follow(airflow, screen, run_id)
        succeeded = self._report(run_id, tasks)
        if self.wish.stay:
            self._stay(airflow)
        return 0 if succeeded else 1

    def _start(self, airflow: RunningAirflow, screen: Screen) -> None:
        """Return when Airflow is up and knows the DAG."""
        title = "Starting Airflow: API server, scheduler, DAG processor, triggerer"
        airflow.wait_until_healthy(self.api, lambda: self._tick(screen, title, []))
        self.api.log_in()
        screen.say(f"Airflow is up after {clock_text(time.monotonic() - self.began)}.  {self.login}")
        began = time.monotonic()
        while not self.api.has_dag(DAG_ID):
            self._tick(screen, f"Waiting for Airflow to read the DAG {DAG_ID}", [])
            airflow.check()
            waited = time.monotonic() - began
            # An error may be another file's, while this one is still to be read.
            errors = "\n".join(self.api.import_errors()) if waited > _DAG_LIMIT_S / 4 else ""
            if errors or waited > _DAG_LIMIT_S:
                raise StartTimeout(
                    f"Airflow found no DAG {DAG_ID} in {self.home.dags}. {errors}".rstrip(),
                    f"Mend the DAG file, or see {self.home.logs / 'dag-processor.log'}.",
                )
            time.sleep(_POLL_S)

    def _follow(self, airflow: RunningAirflow, screen: Screen, run_id: str) -> list[watch.TaskView]:
        """Show the run until it has ended; the tasks as they ended."""
        tasks = watch.order(self.api.tasks(DAG_ID))
        deadline = time.monotonic() + _RUN_LIMIT_S
        views: list[watch.TaskView] = []
        while time.monotonic() < deadline:
            airflow.check()
            views = self._look(tasks, run_id)
            self._tick(screen, f"Run {run_id} of the DAG {DAG_ID}  {self.home.url}", views)
            # The run is asked about only when no task is left: each question costs the machine 20 ms.
            if all(view.ended for view in views) and self._ended(run_id):
                return views
            time.sleep(_POLL_S)
        waiting = ", ".join(view.task_id for view in views if not view.ended)
        raise TotalTimeout(
            f"The run has not ended within {_RUN_LIMIT_S / 60:.0f} min; {waiting} is still open.",
            f"See the tasks' logs in {self.home.airflow / 'logs'}.",
        )

    def _look(self, tasks: list[str], run_id: str) -> list[watch.TaskView]:
        # A busy machine may be late; a dead server is seen by its exit.
        with contextlib.suppress(BackendUnreachable):
            self._instances = self.api.task_instances(DAG_ID, run_id)
        words = watch.read_progress(self.home.storage, DAG_ID, run_id, tasks)
        cluster = watch.describe_clusters(self.home.simulated)
        return watch.views(tasks, self._instances, words, cluster, datetime.now(UTC))

    def _ended(self, run_id: str) -> bool:
        try:
            return self.api.run_state(DAG_ID, run_id) in {"success", "failed"}
        except BackendUnreachable:  # as above
            return False

    def _report(self, run_id: str, tasks: list[watch.TaskView]) -> bool:
        """Print what came of it; whether the run succeeded."""
        succeeded = self.api.run_state(DAG_ID, run_id) == "success"
        took = clock_text(time.monotonic() - self.began)
        lines = [f"\nThe run {'succeeded' if succeeded else 'failed'}; {took} since the start."]
        values = {task.task_id: self.api.result(DAG_ID, run_id, task.task_id) for task in tasks}
        lines += summary.results(values)
        for task in summary.failures(tasks):
            lines += ["", f"{task.task_id} failed. The end of its log:"]
            lines += [f"  {line}" for line in self.api.last_words(DAG_ID, run_id, task.task_id, task.try_number)]
        for line in lines:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        return succeeded

    def _stay(self, airflow: RunningAirflow) -> None:
        """Keep Airflow up until Ctrl-C."""
        self.console.print(f"\n{self.login}\nCtrl-C stops everything.", highlight=False)
        try:
            while True:
                airflow.check()
                self._mind_parent()
                time.sleep(_POLL_S)
        except Stopped as stopped:
            if stopped.status != 128 + signal.SIGINT:
                raise

    def _tick(self, screen: Screen, title: str, tasks: list[watch.TaskView]) -> None:
        self._mind_parent()
        screen.show(title, tasks)

    def _mind_parent(self) -> None:
        """Stop when whoever started the demo has died, unless it was told to outlive its terminal (nohup)."""
        if os.getppid() != self.parent and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            raise Stopped(128 + signal.SIGHUP)


def _end_leftovers(home: DemoHome, console: Console) -> None:
    left = processes.marked(home.root)
    if left:
        console.print(f"Ending what is left of an earlier demo: {len(left)} processes.", highlight=False)
        processes.end(lambda: processes.marked(home.root))
