"""Orphans of any backend: found, spared where their owner lives after all, removed one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.model.errors import RayTpuError
from airflow_raytpu.model.orphans import Fate, Orphan, Reaped

Spare = Callable[[Orphan], Awaitable[str]]
"""Why an orphan is to stay; empty where it may go."""


async def reap(
    backend: Backend, deployment: str, older_than_s: float, *, dry_run: bool = False, spare: Spare | None = None
) -> list[Reaped]:
    """Remove what *deployment* left on *backend* and nobody has looked at for *older_than_s* seconds, or its ttl.

    One that resists does not keep the others.

    :param dry_run: only look.
    :raises RayTpuError: the place cannot be asked what there is.
    """
    found = await backend.orphans(deployment, older_than_s)
    return [await _one(backend, orphan, dry_run, spare) for orphan in found]


async def _one(backend: Backend, orphan: Orphan, dry_run: bool, spare: Spare | None) -> Reaped:
    why = await spare(orphan) if spare else ""
    if why:
        return Reaped(orphan=orphan, fate=Fate.SPARED, says=why)
    if dry_run:
        return Reaped(orphan=orphan, fate=Fate.FOUND)
    try:
        gone = await backend.reap(orphan)
    except RayTpuError as error:
        return Reaped(orphan=orphan, fate=Fate.RESISTS, says=error.cause)
    if gone:
        return Reaped(orphan=orphan, fate=Fate.REAPED)
    return Reaped(orphan=orphan, fate=Fate.SPARED, says="somebody looks after it again")
