"""The outbox of one attempt, from Airflow's side: what it asks for goes in, progress and result come out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.observation import Progress
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.storage import objects

log = logging.getLogger(__name__)


async def write_request(request: RayRequest) -> str:
    """Write what is asked for where the runtime reads it, and return its URI.

    :raises BackendUnreachable: storage does not answer.
    """
    uri = request.outbox("request")
    await asyncio.to_thread(objects.write_json, uri, request.to_dict())
    return uri


async def note_submitted(request: RayRequest, where: str) -> None:
    """Remember that *request* was accepted as *where* (the uid of what runs it), however long that lives.

    :raises BackendUnreachable: storage does not answer.
    """
    note = {"where": where, "owner": request.identity.owner()}
    await asyncio.to_thread(objects.write_json, request.outbox("submitted"), note)


async def submitted(request: RayRequest) -> str:
    """Where *request* was accepted, empty where it never was, or its name only for another owner.

    :raises BackendUnreachable: storage does not answer.
    """
    note = await asyncio.to_thread(objects.read_record, request.outbox("submitted"))
    return str(note.get("where", "")) if note and note.get("owner") == request.identity.owner() else ""


async def read(request: RayRequest) -> tuple[Progress | None, Outcome | None]:
    """The newest progress, and the result once it is there.

    What names another request is as good as absent, and so is what is cut off or no progress or result at all: the
    next write mends it, and a job that ends with no result that can be read has proven nothing.

    :raises BackendUnreachable: storage does not answer.
    """
    progress, outcome = await asyncio.gather(
        asyncio.to_thread(_read, request, "progress", Progress.from_dict),
        asyncio.to_thread(_read, request, "result", Outcome.from_dict),
    )
    return progress, outcome


def _read(request: RayRequest, what: str, made: Callable[[dict[str, Any]], Any]) -> Any:
    try:
        data = objects.read_record(request.outbox(what))
        return made(data) if data and data.get("request") == request.name else None
    except RequestError as error:
        log.warning("The %s of %s cannot be read and does not count: %s", what, request.name, error.cause)
        return None
