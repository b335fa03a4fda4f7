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

from airflow_raytpu.model.errors import NoResultError, RayTpuError, RequestError, UserCodeError
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.outbox import Outbox, speak

log = logging.getLogger("airflow_raytpu.runtime")

STOPPED = 143
"""Exit code after SIGTERM, as a shell gives it."""


def main(arguments: list[str]) -> int:
    """Carry out the request whose URI is the one argument; the process's exit code."""
    if len(arguments) != 1:
        print("usage: python -m airflow_raytpu.runtime REQUEST_URI", file=sys.stderr)
        return 2
    data = files.read_json(arguments[0])
    if data is None:
        print(f"There is no request at {arguments[0]}.", file=sys.stderr)
        return 2
    request = RayRequest.from_dict(data)
    speak()
    outbox = Outbox(request)
    try:
        outcome = Outcome(request=request.name, value=_run(request, outbox))
    except KeyboardInterrupt:
        log.info("stopped")
        return STOPPED
    except Exception as error:
        outcome = failure(request.name, error)
        if not isinstance(error, (RayTpuError, AuthorError)):
            traceback.print_exc()
    # Success counts only once Airflow can read it, so the file comes before the exit code, and Ray's farewell after both.
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
    return runner.run(request, outbox)  # type: ignore[no-any-return]


def _stop(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The one exception that gets out of a wait inside Ray.
    raise KeyboardInterrupt


def _leave_ray() -> None:
    import ray

    ray.shutdown()


def _say(outcome: Outcome) -> None:
    """The last lines of the job's log: what came out, or the author's own traceback."""
    sys.stdout.flush()
    if outcome.succeeded:
        print("done: " + ", ".join(f"{name} {value}" for name, value in outcome.value.items()), flush=True)
        return
    print(f"{outcome.cause}\n  {outcome.lever}  [{outcome.code}]", flush=True)
    if outcome.traceback:
        print(outcome.traceback, flush=True)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The outcome is written: threads that a library left behind must not hold the job open.
    os._exit(code)
