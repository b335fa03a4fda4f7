"""One list and watch per (API server, namespace, kind, label selector) and event loop, however many tasks wait on it.

A watch goes on where it was cut off, so nothing is lost; where the server has forgotten that moment, and every quarter
of an hour anyway, everything is listed again and compared, so that deletes are noticed which no event told.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Awaitable, Callable

from airflow_raytpu.backends.kuberay.api import KubeApi
from airflow_raytpu.backends.kuberay.contents import INVOLVED, Key, Mark, Object
from airflow_raytpu.backends.kuberay.following import Rhythm, Watch
from airflow_raytpu.backends.kuberay.resources import Resource
from airflow_raytpu.model.errors import BackendUnreachable, RayTpuError

__all__ = ["INVOLVED", "Key", "Mark", "Rhythm", "Store", "shared"]

_LOOK_AGAIN_S = 5.0


class Store:
    """One user's share of a watch.

    What it shows lags behind the server by the time that an event takes. So what it does *not* show may have been
    created just now: :meth:`find` and :meth:`gone` make sure.
    """

    def __init__(self, watch: Watch, release: Callable[[], Awaitable[None]]) -> None:
        self._watch = watch
        self._release: Callable[[], Awaitable[None]] | None = release

    async def close(self) -> None:
        """Idempotent; the last user ends the watch."""
        release, self._release = self._release, None
        if release is not None:
            await release()

    @property
    def age(self) -> float:
        """Seconds since the server last spoke of these objects, some 60 where it is well; infinite before a list."""
        return self._watch.age

    @property
    def fault(self) -> RayTpuError | None:
        """Why what is shown is no longer kept up, where that does not pass by itself within a minute."""
        fault = self._watch.fault
        # A new one each time: an exception that is raised in many tasks gathers all their frames.
        return type(fault)(fault.cause, fault.lever) if fault is not None else None

    def get(self, name: str) -> Object | None:
        return self._watch.contents.get(name)

    def items(self) -> list[Object]:
        return self._watch.contents.items()

    def of(self, label: str, value: str) -> list[Object]:
        """Those whose *label* is *value*; of Events also by :data:`INVOLVED`."""
        return self._watch.contents.of(label, value)

    def mark(self, key: Key) -> Mark:
        """The present moment of what *key* names: ``("", name)``, or a label and its value.

        Take it before reading, then :meth:`changed` misses nothing.
        """
        return self._watch.contents.mark(key)

    def put(self, each: Object) -> None:
        """Take notice of an answer to a write, ahead of the watch; it must be of this watch's kind and labels."""
        self._watch.contents.put_ahead(each)

    async def changed(self, mark: Mark) -> None:
        """Until what *mark* is about has changed since, or there is a new :attr:`fault`; bound the wait yourself."""
        await self._watch.contents.changed(mark)

    async def synced(self, within_s: float = 60.0) -> None:
        """Until everything has been listed once.

        :raises RayTpuError: the :attr:`fault`, or ``BackendUnreachable`` after *within_s*.
        """
        try:
            async with asyncio.timeout(within_s):
                while not self._watch.synced:
                    mark = self.mark(("", ""))
                    if fault := self.fault:
                        raise fault
                    await self.changed(mark)
        except TimeoutError as error:
            trouble = self._watch.trouble
            raise BackendUnreachable(
                f"{self._watch.resource.full} could not be listed within {within_s:g} s"
                f"{f': {trouble.cause}' if trouble else '.'}",
                trouble.lever if trouble else "",
            ) from error

    async def find(self, name: str) -> Object | None:
        """The object; where it is not shown, as the server says now."""
        return self.get(name) or await self._watch.api.get(self._watch.resource, name)

    async def gone(self, name: str, uid: str, within_s: float) -> bool:
        """Whether the object with *uid* is no more, by the server's own word, within *within_s*.

        :raises RayTpuError: the :attr:`fault`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    mark = self.mark(("", name))
                    if fault := self.fault:
                        raise fault
                    if await self._is_gone(name, uid):
                        return True
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_AGAIN_S):
                            await self.changed(mark)
        return False

    async def _is_gone(self, name: str, uid: str) -> bool:
        if not self._watch.synced or _uid(self.get(name)) == uid:
            return False
        # What is shown lags behind: it may not have come yet.
        return _uid(await self._watch.api.get(self._watch.resource, name)) != uid


_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, ...], Watch]] = (
    weakref.WeakKeyDictionary()
)


def shared(api: KubeApi, resource: Resource, labels: str = "", rhythm: Rhythm | None = None) -> Store:
    """A share in the one watch of these objects on this event loop, begun where there is none; close it after use.

    :param labels: a label selector.
    """
    loop = asyncio.get_running_loop()
    key = (api.access.key, api.namespace, resource.full, resource.version, labels)
    watches = _watches.setdefault(loop, {})
    watch = watches.get(key)
    if watch is None:
        watch = watches[key] = Watch(api.again(), resource, labels, rhythm or Rhythm())
    watch.users += 1

    async def release() -> None:
        watch.users -= 1
        if watch.users == 0:
            del watches[key]
            if not watches:
                _watches.pop(loop, None)
            await watch.close()

    return Store(watch, release)


def _uid(found: Object | None) -> str:
    return str(found["metadata"].get("uid", "")) if found else ""
