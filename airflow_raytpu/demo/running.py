"""Airflow while it runs: started through the guardian, watched, and ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, cast

from airflow_raytpu.demo import guardian
from airflow_raytpu.demo.api import AirflowApi
from airflow_raytpu.demo.home import DemoHome
from airflow_raytpu.model.errors import BackendUnreachable, PlaceError, StartTimeout

_START_LIMIT_S = 180.0
_POLL_S = 0.25
_LAST_LINES = 20


class RunningAirflow:
    """Airflow's four components under a guardian."""

    def __init__(self, home: DemoHome, process: subprocess.Popen[bytes]) -> None:
        self.home = home
        self._process = process
        self._stdin = cast("IO[bytes]", process.stdin)
        self._stdout = cast("IO[bytes]", process.stdout)

    @classmethod
    def start(cls, home: DemoHome) -> RunningAirflow:
        """Start it and return at once."""
        module = "airflow_raytpu.demo"
        # -P: the folder they start in is no place to import from.
        python = [sys.executable, "-P", "-m"]
        launcher = [*python, f"{module}.components", str(home.logs)]
        with (home.logs / "start.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own modules
                [*python, f"{module}.guardian", str(home.simulated), *launcher],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=home.environment(os.environ),
                cwd=home.airflow,
                # Ctrl-C in the terminal is for the demo alone, which then ends all in order.
                start_new_session=True,
            )
        return cls(home, process)

    def wait_until_healthy(self, api: AirflowApi, each: Callable[[], None]) -> None:
        """Return when every component reports itself healthy; calls *each* now and then.

        :raises PlaceError: a component ended.
        :raises StartTimeout: not within three minutes.
        """
        deadline = time.monotonic() + _START_LIMIT_S
        while not _healthy(api):
            each()
            self.check()
            if time.monotonic() > deadline:
                raise StartTimeout(
                    f"Airflow was not healthy within {_START_LIMIT_S:.0f} s.", f"See the logs in {self.home.logs}."
                )
            time.sleep(_POLL_S)

    def check(self) -> None:
        """:raises PlaceError: a component has ended; with its last words."""
        if not select.select([self._stdout], [], [], 0)[0]:
            return
        line = self._stdout.readline()
        said = json.loads(line) if line.strip() else {"component": "start", "status": self._process.wait()}
        name, status = said["component"], said["status"]
        log = self.home.logs / f"{name}.log"
        what = (
            "Airflow could not be started, or its guardian was killed" if name == "start" else f"Airflow's {name} ended"
        )
        raise PlaceError(f"{what} (status {status}). Its last lines:\n{_tail(log)}", f"The whole of it: {log}.")

    def stop(self) -> None:
        """End every process of the demo and return when none is left. SIGINT meanwhile kills them."""
        before = signal.signal(signal.SIGINT, self._hurry)
        try:
            self._say(guardian.STOP)
            self._process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
            for pipe in (self._stdin, self._stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _hurry(self, _number: int, _frame: FrameType | None) -> None:
        self._say(guardian.NOW)

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is gone already
            self._stdin.write(word)
            self._stdin.flush()


def _healthy(api: AirflowApi) -> bool:
    try:
        # This first call also builds the API for tasks, 3 CPU seconds that the first task would wait for.
        api.wake()
        return api.health()
    except BackendUnreachable:
        return False


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").rstrip().splitlines()
    except OSError as error:
        return f"  ({log} cannot be read: {error.strerror})"
    return "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])
