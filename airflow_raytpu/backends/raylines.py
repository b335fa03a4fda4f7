"""Bytes of a log into lines, each with the offset at which the next one begins."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from airflow_raytpu.backends.base import LogLine

_LONGEST = 256 * 1024
"""Bytes after which a line without an end is given in pieces."""


async def lines(chunks: AsyncIterator[bytes], offset: int) -> AsyncGenerator[LogLine]:
    """Lines of *chunks*, which begin at *offset*; what stands after the last line end comes as a line of its own.

    A chunk may end within a character: text is decoded only when its line is whole, and what is not UTF-8 is replaced.
    """
    held = b""
    async for chunk in chunks:
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            offset += len(line) + 1
            yield LogLine(text=line.decode(errors="replace"), offset=offset)
        if len(held) > _LONGEST:
            offset += len(held)
            yield LogLine(text=held.decode(errors="replace"), offset=offset)
            held = b""
    if held:
        yield LogLine(text=held.decode(errors="replace"), offset=offset + len(held))
