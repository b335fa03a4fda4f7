"""One pool of HTTP connections per event loop, however many clients use it."""

from __future__ import annotations

import asyncio
import weakref

import aiohttp

_LIMIT, _LIMIT_PER_HOST = 100, 16
_CONNECT_S, _READ_S, _TOTAL_S = 5.0, 30.0, 60.0


class _Pool:
    def __init__(self) -> None:
        self.users = 0
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_LIMIT, limit_per_host=_LIMIT_PER_HOST),
            timeout=aiohttp.ClientTimeout(total=_TOTAL_S, connect=_CONNECT_S, sock_read=_READ_S),
            # Answers come from the cluster itself; a proxy of the environment does not lead there.
            trust_env=False,
        )


_pools: weakref.WeakValueDictionary[asyncio.AbstractEventLoop, _Pool] = weakref.WeakValueDictionary()
"""A pool lives as long as its users: one that somebody forgot to close goes with them, and its loop with it."""


class Connections:
    """One client's share of its event loop's pool, taken at first use and given back by :meth:`close`."""

    def __init__(self) -> None:
        self._pool: _Pool | None = None

    def session(self) -> aiohttp.ClientSession:
        """The session of the running event loop."""
        if self._pool is None:
            loop = asyncio.get_running_loop()
            self._pool = _pools.get(loop) or _Pool()
            self._pool.users += 1
            _pools[loop] = self._pool
        return self._pool.session

    async def close(self) -> None:
        """The last user of the pool closes it."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        pool.users -= 1
        if pool.users == 0:
            _pools.pop(asyncio.get_running_loop(), None)
            await pool.session.close()
