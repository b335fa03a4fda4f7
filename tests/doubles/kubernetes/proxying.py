"""The API server's service proxy: HTTP and WebSockets to a backend on this machine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from yarl import URL

from tests.doubles.kubernetes.kinds import SERVICES
from tests.doubles.kubernetes.refusal import Refusal, not_found
from tests.doubles.kubernetes.store import Store

# The API server has used Authorization for itself; the others belong to one connection.
_NOT_FORWARDED = {"authorization", "host", "connection", "upgrade", "content-length", "transfer-encoding", "keep-alive"}
_OF_SOCKET = "sec-websocket-"
_NOT_RETURNED = {"connection", "content-length", "transfer-encoding", "keep-alive", "content-encoding"}


@dataclass
class ServiceProxy:
    """
    :ivar backends: base URL by namespace, service and port; the port is a number as text.
    :ivar open_sockets: WebSockets that pass through now.
    """

    store: Store
    backends: dict[tuple[str, str, str], str] = field(default_factory=dict)
    open_sockets: set[web.WebSocketResponse] = field(default_factory=set)

    async def pass_on(self, request: web.Request, namespace: str, target: str) -> web.StreamResponse:
        """:param target: ``name``, ``name:port`` or ``scheme:name:port``; *port* may be a name."""
        # As it was sent: nothing is decoded and encoded again on the way.
        rest = request.raw_path.partition("/proxy")[2]
        url = URL(self._find(namespace, target) + (rest if rest.startswith("/") else f"/{rest}"), encoded=True)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _NOT_FORWARDED and not name.lower().startswith(_OF_SOCKET)
        }
        headers["X-Forwarded-Uri"] = request.path
        try:
            async with aiohttp.ClientSession(auto_decompress=True) as session:
                if request.headers.get("Upgrade", "").lower() == "websocket":
                    return await self._pass_socket(session, request, url, headers)
                return await _pass_http(session, request, url, headers)
        except aiohttp.ClientConnectorError as error:
            message = f"error trying to reach service: dial tcp {error.host}:{error.port}: connect: connection refused"
            raise Refusal(503, "ServiceUnavailable", message) from error
        except aiohttp.WSServerHandshakeError as error:
            return web.Response(status=error.status, text=error.message)
        except aiohttp.ClientError as error:
            raise Refusal(502, "", f"error trying to reach service: {error}") from error

    def _find(self, namespace: str, target: str) -> str:
        parts = target.split(":")
        name, port = (parts[1], parts[2]) if len(parts) == 3 else (parts[0], parts[1] if len(parts) == 2 else "")
        service = self.store.find(SERVICES, namespace, name)
        if service is None:
            raise not_found(SERVICES, name)
        ports = service.get("spec", {}).get("ports") or []
        found = [
            each for each in ports if port in {str(each["port"]), each.get("name")} or (not port and len(ports) == 1)
        ]
        url = self.backends.get((namespace, name, str(found[0]["port"]))) if found else None
        if url is None:
            raise Refusal(503, "ServiceUnavailable", f'no endpoints available for service "{name}:{port}"')
        return url.rstrip("/")

    async def _pass_socket(
        self, session: aiohttp.ClientSession, request: web.Request, url: URL, headers: dict[str, str]
    ) -> web.StreamResponse:
        wanted = [each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if each.strip()]
        async with session.ws_connect(url, headers=headers, protocols=wanted) as behind:
            front = web.WebSocketResponse(protocols=[behind.protocol] if behind.protocol else ())
            await front.prepare(request)
            self.open_sockets.add(front)
            ways = [asyncio.ensure_future(_pump(front, behind)), asyncio.ensure_future(_pump(behind, front))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                self.open_sockets.discard(front)
            code = behind.close_code or 1000
            await front.close(code=code if code not in {1005, 1006} else 1000)
            return front


async def _pass_http(
    session: aiohttp.ClientSession, request: web.Request, url: URL, headers: dict[str, str]
) -> web.StreamResponse:
    body = await request.read()
    async with session.request(request.method, url, headers=headers, data=body, allow_redirects=False) as reply:
        kept = {name: value for name, value in reply.headers.items() if name.lower() not in _NOT_RETURNED}
        answer = web.StreamResponse(status=reply.status, headers=kept)
        await answer.prepare(request)
        async for chunk in reply.content.iter_any():
            await answer.write(chunk)
        await answer.write_eof()
        return answer


async def _pump(
    source: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
    sink: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
) -> None:
    async for message in source:
        if message.type is aiohttp.WSMsgType.TEXT:
            await sink.send_str(message.data)
        elif message.type is aiohttp.WSMsgType.BINARY:
            await sink.send_bytes(message.data)
