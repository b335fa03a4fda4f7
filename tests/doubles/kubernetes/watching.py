"""Watches: JSON lines over a chunked answer, from a resourceVersion on, and every way in which one ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from tests.doubles.kubernetes.kinds import Kind
from tests.doubles.kubernetes.refusal import Cause, Refusal, invalid
from tests.doubles.kubernetes.store import Item, Store

_LONGEST_S = 1800.0
Cut = Literal["end", "reset", "expired", "hang"]


@dataclass(eq=False)
class Watch:
    """One watch.

    :param wanted: whether an object is of its namespace and selectors.
    :param shown: an object in the version asked for.
    :param start: resourceVersion to go on from; ``None`` for the state now and what comes after.
    :param limit_s: ``timeoutSeconds``.
    """

    store: Store
    kind: Kind
    version: str
    wanted: Callable[[Item], bool]
    shown: Callable[[Item], Item]
    start: int | None
    limit_s: float
    bookmarks: bool
    initial_events_end: bool
    token: str = ""
    bookmark_every_s: float = 60.0
    cut: Cut | None = None
    _poked: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def end(self, how: Cut) -> None:
        """May be called from any thread."""
        self.cut = how
        self._loop.call_soon_threadsafe(self._poked.set)

    async def run(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        # The far end may go at any time; that ends the watch and is nobody's error.
        with contextlib.suppress(ConnectionError):
            await self._send_all(request, answer)
            await answer.write_eof()
        return answer

    async def _send_all(self, request: web.Request, answer: web.StreamResponse) -> None:
        at = await self._begin(answer)
        deadline = time.monotonic() + self.limit_s
        next_bookmark = time.monotonic() + self.bookmark_every_s
        while not self.cut:
            try:
                for change in self.store.since(at):
                    at = change.version
                    if change.kind is self.kind and (event := change.event(self.wanted)):
                        await _write(answer, event[0], self.shown(event[1]))
            except Refusal as refusal:
                await _write(answer, "ERROR", refusal.status())
                return
            now = time.monotonic()
            if now >= deadline or now >= next_bookmark:
                if self.bookmarks:
                    await self._bookmark(answer, at)
                next_bookmark = now + self.bookmark_every_s
            if now >= deadline:
                return
            await self._wait(at, min(deadline, next_bookmark) - now)
        await self._meet_cut(request, answer)

    async def _begin(self, answer: web.StreamResponse) -> int:
        """Send what there is where no version was given; the version to go on from."""
        if self.start is not None:
            return self.start
        at = self.store.version
        for item in self.store.items(self.kind):
            if self.wanted(item):
                await _write(answer, "ADDED", self.shown(item))
        if self.initial_events_end and self.bookmarks:
            await self._bookmark(answer, at, {"k8s.io/initial-events-end": "true"})
        return at

    async def _bookmark(
        self, answer: web.StreamResponse, at: int, annotations: Mapping[str, str] | None = None
    ) -> None:
        meta: dict[str, Any] = {"resourceVersion": str(at), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = dict(annotations)
        api_version = self.kind.api_version(self.version)
        await _write(answer, "BOOKMARK", {"kind": self.kind.kind, "apiVersion": api_version, "metadata": meta})

    async def _wait(self, at: int, within_s: float) -> None:
        waits = [asyncio.ensure_future(self.store.changed(at)), asyncio.ensure_future(self._poked.wait())]
        try:
            await asyncio.wait(waits, timeout=max(within_s, 0.0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _meet_cut(self, request: web.Request, answer: web.StreamResponse) -> None:
        if self.cut == "reset" and request.transport:
            request.transport.abort()
        elif self.cut == "expired":
            words = Refusal(410, "Expired", f"too old resource version: {self.store.oldest} ({self.store.version})")
            await _write(answer, "ERROR", words.status())
        elif self.cut == "hang":
            # A half-open connection: nothing more ever comes, not even the end at timeoutSeconds.
            await asyncio.Event().wait()


def watch_options(kind: Kind, query: Mapping[str, str]) -> dict[str, Any]:
    """What a watch's query asks for, as parameters of :class:`Watch`."""
    stated, initial = query.get("resourceVersion", ""), _true(query.get("sendInitialEvents", ""))
    if initial and query.get("resourceVersionMatch") != "NotOlderThan":
        message = 'Forbidden: sendInitialEvents requires setting resourceVersionMatch to "NotOlderThan"'
        raise invalid(kind, "", [Cause("resourceVersionMatch", "FieldValueForbidden", message)])
    return {
        "start": None if initial or stated in {"", "0"} else version_number(stated),
        "limit_s": float(query.get("timeoutSeconds") or _LONGEST_S),
        "bookmarks": _true(query.get("allowWatchBookmarks", "")),
        "initial_events_end": initial,
    }


def is_watch(query: Mapping[str, str]) -> bool:
    return _true(query.get("watch", ""))


def version_number(text: str) -> int:
    if not text.isdecimal():
        raise Refusal(400, "BadRequest", f'Invalid value: "{text}": invalid resource version')
    return int(text)


def _true(text: str) -> bool:
    """Kubernetes takes any word but these for true, so also Python's ``True``."""
    return text.lower() not in {"", "0", "false"}


async def _write(answer: web.StreamResponse, event: str, item: Item) -> None:
    await answer.write(json.dumps({"type": event, "object": item}).encode() + b"\n")
