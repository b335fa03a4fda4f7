"""The outbox of one attempt, from Airflow's side: what it asks for goes in, progress and result come out."""

from __future__ import annotations

import asyncio

from airflow_raytpu.model.observation import Progress
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.storage import objects


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
    note = await asyncio.to_thread(objects.read_json, request.outbox("submitted"))
    return str(note["where"]) if note and note.get("owner") == request.identity.owner() else ""


async def read(request: RayRequest) -> tuple[Progress | None, Outcome | None]:
    """The newest progress, and the result once it is there. What names another request is as good as absent.

    :raises PathError: a file holds something else.
    :raises BackendUnreachable: storage does not answer.
    """
    progress, outcome = await asyncio.gather(
        *(asyncio.to_thread(objects.read_json, request.outbox(what)) for what in ("progress", "result"))
    )
    return (
        Progress.from_dict(progress) if progress and progress.get("request") == request.name else None,
        Outcome.from_dict(outcome) if outcome and outcome.get("request") == request.name else None,
    )
