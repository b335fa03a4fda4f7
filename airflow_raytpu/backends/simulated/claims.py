"""Claims on things of this machine: the kernel gives each name to one holder and takes it back when the holder dies.

A claim is an abstract Unix socket. Its names live in the network namespace, as the loopback addresses and ports do that
are claimed with it, so claims of several roots and users exclude one another exactly where they would clash.
"""

from __future__ import annotations

import hashlib
import os
import random
import socket
import time
from pathlib import Path

from airflow_raytpu.model.errors import ClusterError

_PORTS = range(20_000, 32_000)
"""Below Linux's ephemeral ports, so that nobody's random port takes one between the claim and its use."""

_POLL_S = 0.05


def claim(name: str, within_s: float = 0.0) -> socket.socket | None:
    """Hold *name* until the socket is closed or this process dies; ``None`` where another holds it after *within_s*."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + within_s
    while True:
        try:
            holder.bind(f"\0airflow-raytpu/{name}")
            return holder
        except OSError:
            if time.monotonic() >= deadline:
                holder.close()
                return None
        time.sleep(_POLL_S)


def folder_claim(folder: Path, within_s: float = 0.0) -> socket.socket | None:
    """The claim that the one supervisor of *folder* holds for life, and whoever removes the folder."""
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    return claim(f"folder/{name}", within_s)


class Machine:
    """What one supervisor holds of this machine. Closing is left to the kernel: it must outlive every exit path."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def block(self) -> str:
        """A loopback block as ``127.x.y.``, held by nobody else.

        :raises ClusterError: every block is taken.
        """
        first = random.randrange(0x1000, 0xFF00)  # noqa: S311 - only spreads the load
        for step in range(0xFF00 - 0x1000):
            # 127.0-15.* stay free: systems put resolvers and their own host name there.
            high, low = divmod(0x1000 + (first - 0x1000 + step) % (0xFF00 - 0x1000), 256)
            if self._hold(f"block/{high}.{low}"):
                return f"127.{high}.{low}."
        raise ClusterError("All loopback address blocks of this machine are taken.", "Delete simulated clusters.")

    def port(self) -> int:
        """A free TCP port, held by nobody else.

        :raises ClusterError: none is free.
        """
        for port in random.sample(_PORTS, len(_PORTS)):
            if _free(port) and self._hold(f"port/{port}"):
                return port
        raise ClusterError(f"No port between {_PORTS[0]} and {_PORTS[-1]} is free.", "Delete simulated clusters.")

    def _hold(self, name: str) -> bool:
        holder = claim(name)
        if holder is not None:
            self._held.append(holder)
        return holder is not None


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
