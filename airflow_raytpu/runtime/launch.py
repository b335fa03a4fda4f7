"""Starting one process of the author's program and seeing it to its end. See :mod:`airflow_raytpu.runtime.program`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from airflow_raytpu.model.errors import LostError, from_code
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.program import FOLDER, write

EVICTED = "RetryBudget(evictions=...) says how often such a loss is made good; the program then begins from its start."

GRACE_S = 20.0
"""How long a program may take to leave once it has been sent SIGTERM; Ray leaves its driver 30 s."""

_POLL_S = 0.2
_TOP = str(Path(__file__).resolve().parents[2])
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
_MEMORY = Path("/sys/fs/cgroup/memory.events")


class Launch:
    """One process. Left, whatever it has started in its process group is ended.

    :param task: ``{"how", "entry", "args", "kwargs", "connect", "where", ...}``, JSON.
    :param environment: variables for it, over those of this process.
    :param under: folder for what passes between the two. After a kill it stays, so let it be one that goes by itself.
    """

    def __init__(self, task: Mapping[str, Any], environment: Mapping[str, str], under: str | None = None) -> None:
        self._task, self._environment, self._under = task, environment, under

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="program-", dir=self._under))
        write(self._folder / "task.json", dict(self._task))
        self._kills = _memory_kills()
        path = os.pathsep.join(filter(None, (_TOP, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "airflow_raytpu.runtime.program", str(self._folder), str(os.getpid())],
            env={
                **os.environ,
                **self._environment,
                "PYTHONPATH": path,
                "PYTHONUNBUFFERED": "1",
                FOLDER: str(self._folder),
            },
            stdin=subprocess.DEVNULL,
            # Signals meant for us are passed on once, and what it leaves behind can be found.
            process_group=0,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def news(self) -> dict[str, Any]:
        """What it told with :func:`here.progress`, empty where it told nothing."""
        return self._read("news") or {}

    @property
    def answered(self) -> bool:
        return (self._folder / "answer.json").exists()

    def wait(self, turn: Callable[[], float | None]) -> Any:
        """What the program returned.

        :param turn: called a few times a second, and once when it has ended; a number ends the process with that many
            seconds of grace.
        :raises AuthorError: it raised, or ended in another way that is its own.
        :raises LostError: somebody killed it.
        :raises RayTpuError: its code or value cannot be used.
        """
        while self._process.poll() is None:
            grace_s = turn()
            if grace_s is not None:
                return self._meaning(self._end(grace_s))
            time.sleep(_POLL_S)
        # Its last word may have come after the last look.
        turn()
        return self._meaning(self._end())

    def _meaning(self, status: int) -> Any:
        answer = self._read("answer")
        if answer is None:
            raise self._unanswered(status)
        if "raised" in answer:
            raise AuthorError(*answer["raised"])
        if "refused" in answer:
            raise from_code(*answer["refused"])
        return answer["value"]

    def _unanswered(self, status: int) -> AuthorError | LostError:
        entry, where = self._task["entry"], self._task["where"]
        if status >= 0:
            cause = f"{entry} ended its process with status {status} before it was done{where}."
            return AuthorError(cause, "No traceback: something called os._exit, or the like.", time.time())
        name = signal.Signals(-status).name
        if -status == signal.SIGKILL and _memory_kills() > self._kills:
            # It would be so again.
            return AuthorError(f"{entry} was killed for want of memory{where}.", "No traceback: SIGKILL.", time.time())
        if -status in _OUTSIDE:
            return LostError(f"{entry} was killed from outside with {name}{where}.", EVICTED)
        # JAX aborts where another process of the mesh is gone.
        cause = f"{entry} crashed with {name}{where}."
        last = "No traceback: the job's log has the last words of the process."
        return AuthorError(cause, last, time.time(), collateral=True)

    def _end(self, grace_s: float = GRACE_S) -> int:
        """End what still runs; the exit status, negative for a signal."""
        if grace_s and self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        self._signal(signal.SIGKILL)
        return self._process.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read(self, name: str) -> Any:
        path = self._folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None


def _memory_kills() -> int:
    """How many processes the kernel has killed here for want of memory, as far as it says so (cgroup v2)."""
    try:
        counts = dict(line.split() for line in _MEMORY.read_text().splitlines())
    except FileNotFoundError:
        return 0
    return int(counts.get("oom_kill", 0))
