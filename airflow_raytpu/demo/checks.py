"""What must hold before a demo starts. Each check raises with the cause and the lever, and has started nothing."""

from __future__ import annotations

import errno
import importlib.util
import shutil
import socket
import sys
from pathlib import Path

import psutil

from airflow_raytpu.model.errors import PathError, RequestError

LEAST_DISK = 1_000_000_000
"""Bytes a demo may write: Airflow's database and logs, Ray's sessions and its object store on small /dev/shm."""

WANTED_MEMORY = 5_000_000_000
"""Bytes: a 4x4 slice that trains takes 3.8 GB, Airflow about 1 GB (measured, PSS)."""

_WANTED_MODULES = ("ray", "jax", "flax", "optax", "orbax.checkpoint", "sklearn")


def check_platform() -> None:
    """:raises RequestError: not Linux, or the packages of the extra ``demo`` are missing."""
    if sys.platform != "linux":
        raise RequestError(f"The demo needs Linux; this is {sys.platform}.", "Run it in a Linux container.")
    missing = [name for name in _WANTED_MODULES if not _is_there(name)]
    if missing:
        raise RequestError(
            f"The demo needs {', '.join(missing)}, not installed here.", "Run make demo, which installs them."
        )


def check_disk(*places: Path) -> None:
    """:raises PathError: less than :data:`LEAST_DISK` bytes are free in one of *places* (existing folders)."""
    for place in places:
        free = shutil.disk_usage(place).free
        if free < LEAST_DISK:
            raise PathError(
                f"{free / 1e9:.1f} GB are free in {place}; the demo needs {LEAST_DISK / 1e9:.0f} GB.",
                "Free space there and start again.",
            )


def memory_warning() -> str:
    """A line for people when memory is short; empty where it is not."""
    free = psutil.virtual_memory().available
    if free >= WANTED_MEMORY:
        return ""
    need = WANTED_MEMORY / 1e9
    return f"{free / 1e9:.1f} GB of memory are available and the demo takes up to {need:.0f} GB: it may be slow."


def choose_port(wanted: int) -> int:
    """*wanted* if it is free on the loopback interface; 0 takes any free one.

    :raises RequestError: it is taken, or below what this user may bind.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            cause = _holder(wanted) if error.errno == errno.EADDRINUSE else f"Port {wanted}: {error.strerror}."
            raise RequestError(
                cause,
                "End that, or choose another: make demo PORT=8081 (0: any free one), airflow-raytpu demo --port 8081.",
            ) from error
        return int(probe.getsockname()[1])


def _holder(port: int) -> str:
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid:
            return f"Port {port} is taken by {_describe(connection.pid)}."
    return f"Port {port} is taken by a process of another user."


def _describe(pid: int) -> str:
    try:
        return f"pid {pid} ({' '.join(psutil.Process(pid).cmdline())[:80]})"
    except psutil.Error:
        return f"pid {pid}"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
