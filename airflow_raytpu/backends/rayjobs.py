"""A request as a job of a cluster that is up: submitted once, by its owner only, and stopped within a limit."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncGenerator
from contextlib import aclosing

from airflow_raytpu.backends import outbox, raylines
from airflow_raytpu.backends.base import LogLine
from airflow_raytpu.backends.rayapi import RayApi
from airflow_raytpu.backends.rayslices import OWNER
from airflow_raytpu.model.errors import BackendUnreachable, ForeignObjectError, RequestError
from airflow_raytpu.model.request import RayRequest

ENTRYPOINT = "python -m airflow_raytpu.runtime"
_POLL_S = 1.0
_STOP_WITHIN_S = 36.0
"""A little more than the 30 s that Ray leaves a job between SIGTERM and SIGKILL on clusters of ours."""


def entrypoint(request: RayRequest) -> str:
    """The job's command line: our own words and the address of the request's file, never the author's text."""
    return f"{ENTRYPOINT} {shlex.quote(request.outbox('request'))}"


def runtime_env(request: RayRequest) -> dict[str, str]:
    """:raises RequestError: it is a job but has no code."""
    if request.code is None:
        raise RequestError(f"Request {request.name} is a job but names no code.")
    return {"working_dir": request.code}


async def submit(api: RayApi, request: RayRequest) -> None:
    """Submit *request*, or find that it is there.

    :raises ForeignObjectError: the name is another owner's.
    """
    environment = runtime_env(request)
    await outbox.write_request(request)
    there = await api.submit_job(
        request.name,
        entrypoint=entrypoint(request),
        runtime_env=environment,
        metadata={OWNER: request.identity.owner()},
    )
    if there is not None:
        refuse_foreign(f"Job {request.name}", there.metadata.get(OWNER, "nobody that is known"), request)


async def stop(api: RayApi, request: RayRequest) -> None:
    """Stop the job of *request* and return when it has ended.

    :raises BackendUnreachable: it had not ended in time; a cluster of its own goes next, so that is no matter there.
    """
    try:
        async with asyncio.timeout(_STOP_WITHIN_S):
            while (job := await api.get_job(request.name)) is not None and not job.state.ended:
                await api.stop_job(request.name)
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        if not request.owns_cluster:
            raise BackendUnreachable(f"Job {request.name} has not stopped after {_STOP_WITHIN_S:.0f} s.") from error
    except BackendUnreachable:
        if not request.owns_cluster:
            raise


async def tail(api: RayApi, request: RayRequest, offset: int) -> AsyncGenerator[LogLine]:
    """Lines of the job's log from *offset* bytes on as they come; ends when the job has ended."""
    async with (
        aclosing(api.follow_logs(request.name, offset)) as chunks,
        aclosing(raylines.lines(chunks, offset)) as lines,
    ):
        async for line in lines:
            yield line


def refuse_foreign(what: str, owner: str, request: RayRequest) -> None:
    """:raises ForeignObjectError: *owner* is not the owner of *request*."""
    own = request.identity.owner()
    if owner != own:
        raise ForeignObjectError(
            f"{what} belongs to {owner or 'nobody that is known'}, not to {own}.",
            "Wait until its owner has deleted it, or give this task another name.",
        )


def misfit(name: str, there: str, asked: str) -> RequestError:
    """A cluster is there under the name, and it is of another slice."""
    return RequestError(
        f"Cluster {name} has {there or 'no slice'}, and {asked} is asked for.",
        "Give the other cluster another name, or wait until this one's time to live is over.",
    )


def other_service(name: str, there: str, asked: str) -> RequestError:
    """A service is there under the name, and it is of another slice."""
    return RequestError(
        f"Service {name} has {there or 'no slice'}, and {asked} is asked for: that would be another cluster.",
        "Delete the service first (RayServeDeleteOperator), or give the application another name.",
    )
