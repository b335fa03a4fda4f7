"""A Kubernetes API server on loopback with the habits of kube-apiserver 1.36, and trouble to order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from tests.doubles.kubernetes import discovery
from tests.doubles.kubernetes.authority import Wish
from tests.doubles.kubernetes.collector import collect, litters
from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.kinds import (
    SERVICES,
    Kind,
)
from tests.doubles.kubernetes.objects import Writing
from tests.doubles.kubernetes.paths import Target, target
from tests.doubles.kubernetes.refusal import Refusal, passing, unauthorized, unknown_path
from tests.doubles.kubernetes.requests import BODY_LIMIT, Requests, installed, read_body
from tests.doubles.kubernetes.trouble import Call, Fault, Order, Trouble
from tests.doubles.kubernetes.watching import Cut, Watch, is_watch, watch_options

_REVIEWS = ("authorization.k8s.io", "selfsubjectaccessreviews")


class FakeKubernetes(Contents):
    """``async with FakeKubernetes(crds=folder) as k: k.url, k.token``.

    :param crds: folder of CRD files; ``None`` serves Ray's kinds without schemas, see :attr:`schemaless`.
    :ivar token: may do everything; :meth:`account` makes others.
    :ivar collects: the controller manager runs; without it foreground deletion waits for ever.
    :ivar bookmark_every_s: pause between a watch's bookmarks; they come before its deadline, too.
    :ivar bookmarks: whether any are sent, which is promised to nobody.
    """

    def __init__(self, crds: Path | None = None) -> None:
        super().__init__(crds)
        self.trouble = Trouble()
        self.collects = True
        self.bookmark_every_s = 60.0
        self.bookmarks = True
        self.watches: list[Watch] = []
        self._requests = Requests(self.objects, self.authority, self.logs)
        self._runner: web.AppRunner | None = None
        self._place: socket.socket | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    # The server as a process.

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        await self.start()
        self._collector = asyncio.create_task(self._collect())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._collector.cancel()
        await self.stop()
        if self._place is not None:
            self._place.close()
        with contextlib.suppress(asyncio.CancelledError):
            await self._collector

    async def start(self) -> None:
        """Listen, on the same port as before where there was one."""
        app = web.Application(client_max_size=BODY_LIMIT * 4)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.0, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        if self._place is None:
            # Bound and never listening: while the server is down, nobody else is given its port.
            self._place = socket.socket()
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._place.bind(("127.0.0.1", 0))
            self._port = self._place.getsockname()[1]
        listening = socket.create_server(("127.0.0.1", self._port), backlog=512)
        await web.SockSite(self._runner, listening).start()

    async def stop(self) -> None:
        """As SIGKILL: every connection is reset, further ones are refused, and old versions are forgotten."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for connection in list(runner.server.connections if runner.server else ()):
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()
        self.store.compact()

    @classmethod
    @contextlib.contextmanager
    def in_thread(cls, crds: Path | None = None) -> Iterator[Self]:
        """A server with an event loop of its own, for clients that block; :meth:`run` reaches into the loop."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        server = cls(crds)
        server.loop = loop
        try:
            server.run(server.__aenter__())
            try:
                yield server
            finally:
                server.run(server.__aexit__())
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The outcome of *work* in the server's loop, called from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    @contextlib.asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """Nothing answers within the block; then the server is there again, restarted."""
        await self.stop()
        try:
            yield
        finally:
            await self.start()

    async def drain(self) -> None:
        """As SIGTERM: watches end in good order, then connections are refused until :meth:`start`."""
        self.cut_watches("end")
        while any(each.cut != "hang" for each in self.watches):
            await asyncio.sleep(0.01)
        await self.stop()

    # Trouble.

    def fail(
        self,
        verb: str = "*",
        resource: str = "*",
        status: Fault = 500,
        times: int | None = 1,
        **more: Any,
    ) -> Order:
        """The next *times* requests that fit meet a fault; see :class:`Order` for what there is."""
        order = Order(verb, resource, status, times, **more)
        self.trouble.orders.append(order)
        return order

    def heal(self) -> None:
        """Take back every order of trouble."""
        self.trouble.orders.clear()

    def cut_watches(self, how: Cut = "end", resource: str = "", token: str = "") -> int:
        """End the watches that there are now; how many. ``hang`` leaves them open and silent for ever."""
        found = [
            each
            for each in self.watches
            if each.cut is None and resource in {"", each.kind.plural} and token in {"", each.token}
        ]
        for each in found:
            each.end(how)
        return len(found)

    def compact(self) -> None:
        """Expire every resourceVersion and continue token that is out."""
        self.store.compact()

    @property
    def live_watches(self) -> int:
        return len(self.watches)

    def count(self, verb: str = "", resource: str = "", token: str = "", status: int = 0) -> int:
        return self.trouble.count(verb, resource, token, status)

    # HTTP.

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        aim = target(request.method, request.path, request.query)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        verb, resource, name = (aim.verb, aim.full, aim.name) if aim else ("get", request.path, "")
        order = self.trouble.meet(verb, resource, name)
        status = 0
        try:
            answer = await self._answer(request, aim, token, order)
            status = answer.status
            return answer
        except Refusal as refusal:
            status = refusal.code
            return _refused(refusal)
        finally:
            if verb != "watch" or status >= 300:
                namespace = aim.namespace if aim else ""
                self.trouble.calls.append(Call(verb, resource, namespace, name, token, status))

    async def _answer(
        self, request: web.Request, aim: Target | None, token: str, order: Order | None
    ) -> web.StreamResponse:
        if order is not None and order.status not in {"drop", "cut"}:
            return await _trouble(request, order)
        user = self.authority.users.get(token)
        if user is None:
            raise unauthorized()
        if aim is None:
            answer = self._discover(request)
        else:
            answer = await self._aimed(request, aim, user, token)
        if order is not None:
            await _spoil(request, answer, order)
        return answer

    def _discover(self, request: web.Request) -> web.Response:
        parts = request.path.strip("/").split("/")
        found = discovery.answer(parts, self._kinds.values())
        if found is None:
            if parts[0] in {"healthz", "livez", "readyz"}:
                return web.Response(text="ok")
            raise unknown_path()
        return web.json_response(found)

    async def _aimed(self, request: web.Request, aim: Target, user: str, token: str) -> web.StreamResponse:
        if (aim.group, aim.resource) == _REVIEWS:
            return self._requests.may(user, await read_body(request))
        wish = Wish(aim.verb, aim.group, aim.resource, aim.subresource, aim.namespace, aim.name)
        self.authority.check(user, wish)
        kind = installed(self._kinds, aim)
        if aim.subresource == "proxy" and kind is SERVICES:
            return await self.proxy.pass_on(request, aim.namespace, aim.name)
        if aim.verb == "watch" and is_watch(request.query):
            return await self._watch(request, aim, kind, token)
        return await self._requests.answer(request, aim, kind, user)

    async def _watch(self, request: web.Request, aim: Target, kind: Kind, token: str) -> web.StreamResponse:
        wanted = self._requests.selector(aim, kind, request.query)
        how = Writing(kind, aim.version)
        options = watch_options(kind, request.query)
        options["bookmarks"] &= self.bookmarks or options["initial_events_end"]
        if options["start"] is not None:
            self.store.check_not_ahead(options["start"])
        watch = Watch(
            store=self.store,
            kind=kind,
            version=aim.version,
            wanted=wanted,
            shown=lambda item: self.objects.shown(item, how),
            token=token,
            bookmark_every_s=self.bookmark_every_s,
            **options,
        )
        self.watches.append(watch)
        self.trouble.calls.append(Call("watch", aim.full, aim.namespace, aim.name, token, 200))
        try:
            return await watch.run(request)
        finally:
            self.watches.remove(watch)

    async def _collect(self) -> None:
        done = 0
        while True:
            seen = self.store.version
            if self.collects:
                while self._leaves_litter(done) and collect(self.objects, list(self._kinds.values())):
                    await asyncio.sleep(0)
                done = seen
            await self.store.changed(seen)

    def _leaves_litter(self, since: int) -> bool:
        """Whether anything after *since* may have left objects without owners."""
        try:
            return any(map(litters, self.store.since(since)))
        except Refusal:
            return True  # nobody knows any more


def _refused(refusal: Refusal) -> web.Response:
    if refusal.plain:
        return web.Response(status=refusal.code, text=refusal.message)
    headers = {}
    if after := (refusal.details or {}).get("retryAfterSeconds"):
        headers["Retry-After"] = str(after)
    return web.json_response(refusal.status(), status=refusal.code, headers=headers)


async def _trouble(request: web.Request, order: Order) -> web.StreamResponse:
    if order.status == "hang":
        await asyncio.Event().wait()
    if order.status == "reset" and request.transport:
        request.transport.abort()
        await asyncio.Event().wait()
    if order.status == "garbage":
        return web.Response(status=502, text="<html><body>502 Bad Gateway</body></html>", content_type="text/html")
    raise passing(504 if order.status == "timeout" else int(order.status), order.retry_after)


async def _spoil(request: web.Request, answer: web.StreamResponse, order: Order) -> None:
    """Let the answer to what was carried out get lost."""
    assert request.transport is not None
    if order.status == "cut":
        part = web.StreamResponse(status=answer.status, headers={"Content-Length": "1000"})
        await part.prepare(request)
        await part.write(b'{"kind": ')
    request.transport.abort()
