"""Who we are to an API server: credentials as a client of kubernetes_asyncio has them, loaded again when refused."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp

from airflow_raytpu.model.errors import BackendUnreachable

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

_LOAD_S = 30.0
_RENEW_EVERY_S = 5.0
"""Credentials that are refused at once after they were loaded are not loaded again at each task's call."""

_NAME = {"User-Agent": "airflow-raytpu"}
"""For the API server's audit log and metrics."""


class Access(Protocol):
    """How to reach one API server.

    :ivar key: equal keys share connections and watches.
    """

    @property
    def key(self) -> str: ...

    async def client(self) -> ApiClient:
        """A client with freshly loaded credentials; asked for once per event loop, and again after a 401."""


class Loaded:
    """Credentials as loaded once, with the connections that were opened by them."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client
        self.session: aiohttp.ClientSession = client.rest_client.pool_manager
        self.host = str(client.configuration.host).rstrip("/")
        self._in_flight = 0
        self._retired = False
        self._tls: ssl.SSLContext | None = None

    async def headers(self) -> dict[str, str]:
        """What says who we are; a token that is near its end is renewed by the client's own hook."""
        found = {str(name): str(value) for name, value in self.client.default_headers.items()} | _NAME
        if self.client.cookie:
            found["Cookie"] = self.client.cookie
        with _explained():
            await self.client.update_params_for_auth(found, [], ["BearerToken"])
        return found

    def route(self) -> dict[str, Any]:
        """The connection's arguments for aiohttp that depend on the network between."""
        configuration = self.client.configuration
        found = {
            "proxy": configuration.proxy,
            "proxy_headers": configuration.proxy_headers,
            "server_hostname": configuration.tls_server_name,
        }
        return {name: value for name, value in found.items() if value}

    async def tls(self) -> ssl.SSLContext:
        """The TLS context that other sessions need to reach the same server; made once, which takes 30 ms."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(_tls, self.client.configuration)
        return self._tls

    @contextlib.asynccontextmanager
    async def using(self) -> AsyncIterator[Loaded]:
        """Keeps the connections open inside; the last user of retired credentials closes them."""
        self._in_flight += 1
        try:
            yield self
        finally:
            self._in_flight -= 1
            await self._close_if_over()

    async def retire(self) -> None:
        self._retired = True
        await self._close_if_over()

    async def _close_if_over(self) -> None:
        if self._retired and self._in_flight == 0:
            await self.client.close()


class Line:
    """What the users of one key share on one event loop."""

    def __init__(self) -> None:
        self.users = 0
        self._loaded: Loaded | None = None
        self._loading = asyncio.Lock()
        self._renewed = float("-inf")

    async def loaded(self, access: Access) -> Loaded:
        async with self._loading:
            if self._loaded is None:
                self._loaded = Loaded(await _load(access))
            return self._loaded

    async def refused(self, loaded: Loaded) -> None:
        """The server did not know *loaded*: whoever asks next loads credentials again."""
        now = asyncio.get_running_loop().time()
        if loaded is self._loaded and now - self._renewed >= _RENEW_EVERY_S:
            self._renewed = now
            self._loaded = None
            await loaded.retire()

    async def close(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await loaded.retire()


async def _load(access: Access) -> ApiClient:
    # 2 s of CPU at the first import, during which the loop of a thousand waiting tasks must go on.
    await asyncio.to_thread(importlib.import_module, "kubernetes_asyncio.client")
    with _explained():
        async with asyncio.timeout(_LOAD_S):
            return await access.client()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    from kubernetes_asyncio.config import ConfigException

    try:
        yield
    except (ConfigException, OSError, TimeoutError, ValueError) as error:
        raise BackendUnreachable(
            f"The credentials of the Kubernetes connection cannot be loaded: {type(error).__name__}: {error}",
            "Check the connection's kubeconfig, or its exec plugin.",
        ) from error


def _tls(configuration: Any) -> ssl.SSLContext:
    """As kubernetes_asyncio 36 makes it for itself (client/rest.py)."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
