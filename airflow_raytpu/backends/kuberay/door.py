"""The way to a service in the cluster through the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl

    from airflow_raytpu.backends.kuberay.connection import Connection


class Door:
    """The API server's proxy of one service. Valid while the client it came from is open.

    The API server takes ``Authorization`` for itself and does not hand it on; Ray's own token travels in
    ``X-Ray-Authorization`` (Ray 2.60).

    :ivar url: the base URL, without a slash at its end.
    :ivar ssl: how to check the API server's certificate, and our own where it wants one; ``None`` without TLS.
    """

    def __init__(self, url: str, connection: Connection) -> None:
        self.url = url
        self.ssl: ssl.SSLContext | None = None
        self._connection = connection

    async def headers(self) -> dict[str, str]:
        """What tells the API server who we are; ask anew for each request, since tokens and ``ssl`` change."""
        loaded = await self._connection.loaded()
        if self.url.startswith("https:"):
            self.ssl = await loaded.tls()
        return await loaded.headers()

    async def arguments(self) -> dict[str, Any]:
        """Headers, TLS and route, as ``request`` and ``ws_connect`` of an aiohttp session take them."""
        found = {"headers": await self.headers(), **(await self._connection.loaded()).route()}
        return {**found, "ssl": self.ssl} if self.ssl else found

    async def refused(self) -> None:
        """Say that the API server answered 401, so that the next request's credentials are loaded anew."""
        await self._connection.refused(await self._connection.loaded())
