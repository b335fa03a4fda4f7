"""A job's log in the two forms that Ray 2.60 gives it in, read piece by piece: no log is ever held as a whole."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Protocol

import aiohttp

from airflow_raytpu.backends.raystatuses import Job
from airflow_raytpu.model.errors import BackendUnreachable

_TRIES = 5
_SHOWN = 100
_BEGINNING = re.compile(rb'\s*\{\s*"logs"\s*:\s*"')
_WHOLE_CHARACTERS = re.compile(
    rb"(?:"
    rb'[^"\\\x80-\xff]++'
    rb"|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
    rb"|\\[^u]"
    rb"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb")*+"
)


class Source(Protocol):
    """The dashboard that has the log."""

    async def get_job(self, submission_id: str) -> Job | None: ...
    def body(self, path: str) -> AsyncGenerator[bytes]: ...
    def socket(self, path: str) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]: ...


async def follow(
    ray: Source, submission_id: str, offset: int, *, idle_s: float, reopen_s: float
) -> AsyncGenerator[bytes]:
    """The job's log from *offset* bytes on as it comes; ends when the job has ended or is gone.

    A connection that closes in between, even in good order, is opened again. Chunks may end within a line.

    :param idle_s: silence after which it looks whether the job has ended: Ray takes seconds to close then.
    :param reopen_s: pause before a connection is opened again.
    :raises BackendUnreachable: no good answer, however often it is asked for.
    """
    opened, trouble = False, 0
    while (found := await ray.get_job(submission_id)) is not None:
        if opened and not found.state.ended:
            await asyncio.sleep(reopen_s)
        opened, at, before = True, 0, offset
        source = _whole(ray, submission_id) if found.state.ended else _live(ray, submission_id, idle_s)
        try:
            async with aclosing(source) as chunks:
                async for chunk in chunks:
                    start, at = at, at + len(chunk)
                    if at > offset:
                        yield chunk[max(0, offset - start) :]
                        offset = at
        except BackendUnreachable:
            trouble = 1 if offset > before else trouble + 1
            if trouble >= _TRIES:
                raise
            await asyncio.sleep(reopen_s)
        else:
            if found.state.ended:
                return


async def _live(ray: Source, submission_id: str, idle_s: float) -> AsyncGenerator[bytes]:
    """One connection's worth of the log, from its beginning; ends when the connection or the job does."""
    try:
        async with ray.socket(f"/api/jobs/{submission_id}/logs/tail") as socket:
            while True:
                try:
                    message = await socket.receive(timeout=idle_s)
                except TimeoutError:
                    found = await ray.get_job(submission_id)
                    if found is None or found.state.ended:
                        return
                    continue
                if message.type is not aiohttp.WSMsgType.TEXT:
                    return
                yield message.data.encode()
    except (aiohttp.ClientError, OSError):
        return  # the caller looks at the job and decides


async def _whole(ray: Source, submission_id: str) -> AsyncGenerator[bytes]:
    """An ended job's log."""
    async with (
        aclosing(ray.body(f"/api/jobs/{submission_id}/logs")) as pieces,
        aclosing(unpacked(pieces)) as chunks,
    ):
        async for chunk in chunks:
            yield chunk


async def unpacked(answer: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """The log in ``{"logs": "..."}``, of which *answer* is the bytes, cut anywhere. No answer is an empty log.

    :raises BackendUnreachable: *answer* is something else, or ends too early.
    """
    held, begun = b"", False
    async for piece in answer:
        held += piece
        if not begun:
            beginning = _BEGINNING.match(held)
            if beginning is None and len(held) > _SHOWN:
                break
            if beginning is None:
                continue
            held, begun = held[beginning.end() :], True
        whole = _WHOLE_CHARACTERS.match(held)
        end = whole.end() if whole else 0
        if end:
            yield json.loads(b'"%s"' % held[:end], strict=False).encode(errors="replace")
        held = held[end:]
        if held.startswith(b'"'):
            return
    if held or begun:
        raise BackendUnreachable(f"What was answered is not a whole log: {held[:_SHOWN]!r}.")
