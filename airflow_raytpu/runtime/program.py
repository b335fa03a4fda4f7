"""One process of the author's program: a function, a script with arguments, or a module as ``python -m`` runs it.

A process of its own, so that whatever the program does to it (``sys.exit``, a crash, a second ``ray.init``) is seen
from outside as what it is. Started by :mod:`airflow_raytpu.runtime.launch` with a folder: the task lies in it as JSON,
and the answer is written beside it. No word of the author's is on a command line.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import math
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_raytpu.model.errors import RayTpuError, UserCodeError
from airflow_raytpu.runtime import author
from airflow_raytpu.runtime.author import AuthorError

FOLDER = "RAYTPU_PROGRAM"
"""Variable that names the folder, for :mod:`airflow_raytpu.runtime.here`."""

VALUE_LIMIT = 1_000_000
"""Largest value that is handed back, in bytes of JSON."""

_PR_SET_PDEATHSIG = 1
# Ray's ways to say that what it ran on is gone; the program may have failed for no other reason.
_GONE = {
    "ActorDiedError",
    "ActorUnavailableError",
    "NodeDiedError",
    "ObjectLostError",
    "OwnerDiedError",
    "RayActorError",
    "WorkerCrashedError",
}


def main(folder: Path, parent: int) -> int:
    """Run the task in *folder*, and write the answer there; the process's exit code."""
    _die_with(parent)
    task = json.loads((folder / "task.json").read_text())
    try:
        answer = {"value": checked(task["entry"], run(task))}
    except AuthorError as error:
        answer = {"raised": [error.cause, error.traceback, error.at, error.collateral]}
    except RayTpuError as error:
        answer = {"refused": [error.code, error.cause, error.lever]}
    write(folder / "answer.json", answer)
    return 0 if "value" in answer else 1


def run(task: Mapping[str, Any]) -> Any:
    """What the program returned; ``None`` of a script or a module.

    :raises AuthorError: it raised, or ended before it had returned.
    :raises CodeError: it is not there.
    """
    entry, arguments = task["entry"], task["args"]
    if task["how"] == "function":
        return _call(author.load(entry), task)
    sys.argv = [entry, *arguments]
    try:
        with _quoted(entry, task["where"]):
            if task["how"] == "script":
                # As python itself does for a script.
                sys.path.insert(0, str(Path(entry).resolve().parent))
                runpy.run_path(entry, run_name="__main__")
            else:
                runpy.run_module(entry, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if left.code not in (None, 0):
            raise _ended(entry, left, task["where"]) from left
    return None


def _call(function: Any, task: Mapping[str, Any]) -> Any:
    if task["connect"]:
        import ray

        ray.init(log_to_driver=True)
    name = getattr(function, "__name__", task["entry"])
    try:
        with _quoted(name, task["where"]):
            value = function(*task["args"], **task["kwargs"])
            return asyncio.run(value) if inspect.iscoroutine(value) else value
    except SystemExit as left:
        # A function succeeds by returning. Whoever leaves half-way has not.
        raise _ended(name, left, task["where"]) from left


class _quoted:  # noqa: N801 - reads as the one in author
    """:func:`author.quoted`, which also knows by what Ray says that a host is gone."""

    def __init__(self, what: str, where: str) -> None:
        self._what, self._where = what, where

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, (RayTpuError, AuthorError)):
            return
        # For the log: the whole of it, as any program leaves it.
        traceback.print_exception(error)
        cause = f"{self._what} raised {type(error).__name__}{self._where}."
        raise AuthorError(cause, author.own_frames(error), time.time(), is_collateral(error)) from error


def is_collateral(error: BaseException | None) -> bool:
    """Whether *error* may only be the echo of a host that is gone, or of another host's failure."""
    while error is not None:
        kind = type(error)
        if author.is_collateral(error) or (kind.__module__.startswith("ray.") and kind.__name__ in _GONE):
            return True
        error = getattr(error, "cause", None) if kind.__name__ == "RayTaskError" else error.__cause__
    return False


def _ended(name: str, left: SystemExit, where: str) -> AuthorError:
    code = left.code
    if isinstance(code, str):
        sys.stderr.write(code + "\n")
    said = f"sys.exit({code!r})"
    return AuthorError(f"{name} ended with {said}{where}.", author.own_frames(left), time.time())


def checked(name: str, value: Any) -> Any:
    """*value*, if JSON holds it as it is.

    :raises UserCodeError: it does not, or it is too large.
    """
    for place, what in _strange(value, ""):
        raise UserCodeError(
            f"{name} returned a value that is not JSON: {what}{f' at {place}' if place else ''}.",
            "Return numbers, text, lists and dicts with text keys; write anything else to storage and return its URI.",
        )
    size = len(json.dumps(value))
    if size > VALUE_LIMIT:
        raise UserCodeError(
            f"{name} returned {size:,} bytes of JSON; {VALUE_LIMIT:,} fit into an XCom.",
            "Write it to storage and return its URI.",
        )
    return value


def _strange(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Where *value* holds something that JSON does not, and what."""
    match value:
        case None | bool() | str() | int():
            if type(value) not in (type(None), bool, str, int):
                yield place, f"a {type(value).__name__}"
        case float():
            if type(value) is not float or not math.isfinite(value):
                yield place, repr(value)
        case dict():
            for key, each in value.items():
                if not isinstance(key, str):
                    yield place, f"a key {key!r}"
                yield from _strange(each, f"{place}[{key!r}]")
        case list() | tuple():
            for number, each in enumerate(value):
                yield from _strange(each, f"{place}[{number}]")
        case _:
            yield place, f"a {type(value).__name__}"


def write(path: Path, value: Any) -> None:
    """Write *value* as JSON, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


def _die_with(parent: int) -> None:
    """End this process when the thread that started it does: a driver that is killed leaves nothing behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        # A farewell among the hosts, as JAX has one at exit, would only hold the error back.
        os._exit(code)
