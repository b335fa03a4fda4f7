"""Where the picture comes from: simulated clusters of this machine, or the place that a connection names."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.model.slices import SliceState


def read(conn_id: str | None, cluster: str | None) -> list[SliceState]:
    """The slices of every cluster that lives, or of those called *cluster*, with or without the hash at its end.

    :raises RayTpuError: the place cannot be asked.
    """
    return asyncio.run(_read(_of_connection(conn_id) if conn_id else _of_machine(), cluster))


async def _read(backends: Iterable[Backend], cluster: str | None) -> list[SliceState]:
    found = []
    for backend in backends:
        try:
            # Not by name: naming a cluster keeps it alive, and who only looks must not.
            found += await backend.slices()
        finally:
            await backend.close()
    return [each for each in found if cluster in {None, each.cluster, each.cluster_slug}]


def _of_machine() -> list[Backend]:
    from airflow_raytpu.backends.simulated.backend import SimulatedBackend

    return [SimulatedBackend(root) for root in _roots()]


def _roots() -> list[Path]:
    """Folders of this user's simulated clusters: the stated or usual one, and those of demos."""
    usual = f"raytpu-{os.getuid()}"
    temporary = Path("/tmp")  # noqa: S108 - owner and mode are checked
    roots = [Path(os.environ.get("RAYTPU_SIM_ROOT") or temporary / usual), *sorted(temporary.glob(f"{usual}-*"))]
    return [root for root in dict.fromkeys(roots) if _private(root)]


def _private(root: Path) -> bool:
    try:
        about = root.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022


def _of_connection(conn_id: str) -> list[Backend]:
    from airflow_raytpu.hooks.raytpu import RayTpuHook, read_airflows_own_connections

    read_airflows_own_connections()
    return [RayTpuHook(conn_id).place().open()]
