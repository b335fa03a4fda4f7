"""The objects and the log of what happened to them, under one rising resourceVersion."""

from __future__ import annotations

import asyncio
import bisect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.doubles.kubernetes.kinds import Kind
from tests.doubles.kubernetes.refusal import Refusal, too_old

Item = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One write; *before* and *after* are ``None`` where the object was not, or is no more."""

    version: int
    kind: Kind
    before: Item | None
    after: Item | None

    def event(self, wanted: Callable[[Item], bool]) -> tuple[str, Item] | None:
        """How a watch of the objects that are *wanted* sees it: one that no longer fits has gone, for that watch."""
        was = self.before is not None and wanted(self.before)
        now = self.after is not None and wanted(self.after)
        if now and self.after is not None:
            return ("MODIFIED" if was else "ADDED"), self.after
        if not was or self.before is None:
            return None
        # A deletion carries the version at which it happened, so that a watch can go on from there.
        meta = {**self.before["metadata"], "resourceVersion": str(self.version)}
        return "DELETED", {**(self.after or self.before), "metadata": meta}


class Store:
    """Objects are never changed in place: each write puts a new one, so that a snapshot is a list.

    :ivar version: of the last write.
    :ivar oldest: watches and pages from before this version are expired.
    """

    def __init__(self) -> None:
        self.version = 1000
        self.oldest = 1000
        self._items: dict[tuple[str, str], dict[tuple[str, str], Item]] = {}
        self._log: list[Change] = []
        self._snapshots: dict[int, dict[tuple[str, str], list[Item]]] = {}
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._lock = threading.Lock()

    def find(self, kind: Kind, namespace: str, name: str) -> Item | None:
        return self._items.get(kind.key, {}).get((namespace, name))

    def items(self, kind: Kind, namespace: str | None = None) -> list[Item]:
        """In the order in which the server lists them: by namespace, then by name."""
        found = self._items.get(kind.key, {})
        return [found[key] for key in sorted(found) if namespace is None or key[0] == namespace]

    def everything(self) -> list[Item]:
        return [item for of_kind in list(self._items.values()) for item in list(of_kind.values())]

    def put(self, kind: Kind, item: Item) -> Item:
        """Write *item* with a new version; what is stored."""
        meta = item["metadata"]
        key = meta.get("namespace", "") if kind.namespaced else "", meta["name"]
        with self._lock:
            of_kind = self._items.setdefault(kind.key, {})
            self.version += 1
            stored = {**item, "metadata": {**meta, "resourceVersion": str(self.version)}}
            self._log.append(Change(self.version, kind, of_kind.get(key), stored))
            of_kind[key] = stored
        self._wake()
        return stored

    def drop(self, kind: Kind, item: Item) -> None:
        meta = item["metadata"]
        key = meta.get("namespace", "") if kind.namespaced else "", meta["name"]
        with self._lock:
            before = self._items.get(kind.key, {}).pop(key, None)
            if before is None:
                return
            self.version += 1
            self._log.append(Change(self.version, kind, before, None))
        self._wake()

    def since(self, version: int) -> Iterator[Change]:
        """What happened after *version*.

        :raises Refusal: that is no longer known.
        """
        if version < self.oldest:
            raise too_old(version, self.oldest)
        log = self._log
        start = bisect.bisect_right(log, version, key=lambda change: change.version)
        yield from log[start:]

    def compact(self) -> None:
        """Forget all that is older than now, as etcd does every 5 minutes and a restarted server at once."""
        with self._lock:
            self.version += 1  # even one who has seen the last write is behind
            self.oldest = self.version
            self._log = []
            self._snapshots.clear()
        self._wake()

    def snapshot(self, kind: Kind, version: int | None = None) -> tuple[int, list[Item]] | None:
        """All objects of *kind* as they were at *version*, now where left out; ``None`` where that is expired."""
        if version is None:
            self._snapshots.setdefault(self.version, {})[kind.key] = self.items(kind)
            return self.version, self._snapshots[self.version][kind.key]
        kept = self._snapshots.get(version, {}).get(kind.key)
        return (version, kept) if kept is not None else None

    async def changed(self, version: int) -> None:
        """Return once something has happened after *version*."""
        while self.version <= version:
            entry = asyncio.get_running_loop(), asyncio.Event()
            self._waiting.append(entry)
            try:
                if self.version <= version:
                    await entry[1].wait()
            finally:
                self._waiting.remove(entry)

    def check_not_ahead(self, version: int) -> None:
        """:raises Refusal: *version* is one that this server has not reached (504, to be tried again)."""
        if version > self.version:
            message = f"Timeout: Too large resource version: {version}, current: {self.version}"
            raise Refusal(504, "Timeout", message, details={"retryAfterSeconds": 1})

    def _wake(self) -> None:
        for loop, event in list(self._waiting):
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)
