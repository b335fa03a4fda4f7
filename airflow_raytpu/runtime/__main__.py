"""A Ray job's driver: a request in, progress on the way, one outcome out."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

from airflow_raytpu.model.errors import NoResultError, PathError, RayTpuError, RequestError, UserCodeError
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.attendance import Attendance
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.closing import closing
from airflow_raytpu.runtime.outbox import Outbox, speak

log = logging.getLogger("airflow_raytpu.runtime")

STOPPED = 143
"""Exit code after SIGTERM, as a shell gives it."""


def main(arguments: list[str]) -> int:
    """Carry out the request whose URI is the one argument; the process's exit code."""
    if len(arguments) != 1:
        return _refuse("usage: python -m airflow_raytpu.runtime REQUEST_URI")
    try:
        data = files.read_json(arguments[0])
        if data is None:
            return _refuse(f"There is no request at {arguments[0]}.")
        request = RayRequest.from_dict(data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return _refuse(f"{arguments[0]} holds no whole request: {error!r}")
    speak()
    outbox = Outbox(request)
    try:
        outcome = Outcome(request=request.name, value=_run(request, outbox))
    except KeyboardInterrupt:
        log.info("stopped")
        return STOPPED
    except Exception as error:  # noqa: BLE001 - whatever it is, Airflow is told
        outcome = failure(request.name, error)
        if not isinstance(error, (RayTpuError, AuthorError)):
            traceback.print_exc()
    # The result file alone proves success, so it comes first; Ray's farewell takes a while.
    outbox.finish(outcome)
    _leave_ray()
    _say(outcome)
    return 0 if outcome.succeeded else 1


def failure(request: str, error: Exception) -> Outcome:
    """What *error* means for the task: the author's, the place's, or a fault of our own."""
    if isinstance(error, AuthorError):
        lever = "The traceback is the author's own code; the job's log has the lines before it."
        return Outcome(
            request=request, code=UserCodeError.code, cause=error.cause, lever=lever, traceback=error.traceback
        )
    if isinstance(error, RayTpuError):
        return Outcome(request=request, code=error.code, cause=error.cause, lever=error.lever)
    if isinstance(error, OSError) and error.filename is not None:
        cause = f"{error.filename} is refused: {error.strerror or error}."
        return Outcome(
            request=request, code=PathError.code, cause=cause, lever="See the space and the permissions there."
        )
    cause = f"The runtime failed: {type(error).__name__}: {error}"
    return Outcome(
        request=request, code=NoResultError.code, cause=cause, lever="The job's log has the whole traceback."
    )


def _run(request: RayRequest, outbox: Outbox) -> Mapping[str, Any]:
    if not request.kind.is_job:
        raise RequestError(f"A {request.kind.value} request has nothing to run.")
    runner = importlib.import_module(f"airflow_raytpu.runtime.{request.kind.value}")
    import ray

    ray.init(log_to_driver=True)
    # After ray.init, which installs a handler of its own.
    signal.signal(signal.SIGTERM, _stop)
    if request.kind is not Kind.SERVE:  # a rollout ends healthy or rolled back, whoever looks
        Attendance(request).start()
    return runner.run(request, outbox)  # type: ignore[no-any-return]


def _stop(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The one exception that gets out of a wait inside Ray.
    raise KeyboardInterrupt


def _refuse(why: str) -> int:
    sys.stderr.write(why + "\n")
    return 2


def _leave_ray() -> None:
    import ray

    ray.shutdown()


def _say(outcome: Outcome) -> None:
    """The last lines of the job's log: what came out, or the author's own traceback."""
    if outcome.succeeded:
        log.info("%s", closing(outcome.value))
        return
    log.info("%s\n  %s  [%s]", outcome.cause, outcome.lever, outcome.code)
    if outcome.traceback:
        log.info("%s", outcome.traceback)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The outcome is written: threads that a library left behind must not hold the job open.
    os._exit(code)
