"""Keeping up with one kind of object: list, watch, go on where it was cut off, list again where that is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from airflow_raytpu.backends.kuberay.api import KubeApi
from airflow_raytpu.backends.kuberay.connection import spread
from airflow_raytpu.backends.kuberay.contents import Contents, Object
from airflow_raytpu.backends.kuberay.refusals import Asked, Expired
from airflow_raytpu.backends.kuberay.resources import EVENTS, Resource
from airflow_raytpu.backends.kuberay.streaming import Event, Kind, events
from airflow_raytpu.model.errors import BackendUnreachable, ForbiddenError, NotInstalledError, RayTpuError

log = logging.getLogger(__name__)

_OVERDUE_S = 60.0
_SHORT_S = 1.0
_RESUMES = 3
"""After so many failures in a row the place in the stream is no longer trusted."""

_INVOLVED_KINDS = {"RayCluster", "RayJob", "RayService", "Pod", "Job", "Workload", "PersistentVolumeClaim"}
_MOST_EVENTS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """When a watch is renewed, doubted and given up; all in seconds.

    :param watch: how long the server keeps one watch open; it ends up to 10 s earlier or later.
    :param silence: no event and no bookmark (sent about every 60 s) for so long is a dead connection.
    :param resync: list all again after this, up to a quarter earlier or later.
    :param patience: trouble that may pass is told to waiters after this.
    :param lasting_pause: look so often whether what only people can mend is mended.
    """

    watch: float = 300.0
    silence: float = 90.0
    resync: float = 750.0
    patience: float = 60.0
    first_pause: float = 0.5
    longest_pause: float = 10.0
    lasting_pause: float = 30.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def pause(self, failures: int, *, lasting: bool = False) -> float:
        return spread(self.first_pause, self.lasting_pause if lasting else self.longest_pause, failures)

    def around(self, seconds: float, by: float) -> float:
        return seconds + by * random.uniform(-1.0, 1.0)  # noqa: S311 - only spreads the load


class Watch:
    """What all users of one key share."""

    def __init__(self, api: KubeApi, resource: Resource, labels: str, rhythm: Rhythm) -> None:
        self.users = 0
        self.api = api
        self.resource = resource
        self.rhythm = rhythm
        self.contents = Contents(_is_ours, _MOST_EVENTS) if resource == EVENTS else Contents()
        self.synced = False
        self.fault: RayTpuError | None = None
        self.trouble: RayTpuError | None = None
        self._labels = labels
        self._asked = Asked(verb="watch", resource=resource, namespace=api.namespace)
        self._version = ""
        self._listed = self._heard = rhythm.clock()
        self._resync = 0.0
        self._failures = 0
        self._streaming = False
        self._doubted = False
        self._task = asyncio.create_task(self._follow(), name=str(self._asked))

    @property
    def age(self) -> float:
        """Seconds since the server last spoke of these objects; infinite before the first list."""
        return self.rhythm.clock() - self._heard if self.synced else float("inf")

    async def close(self) -> None:
        self._task.cancel()
        try:
            await asyncio.wait({self._task})
        finally:
            self.contents.wake_all()
            await self.api.close()

    async def _follow(self) -> None:
        while True:
            try:
                await self._once()
            except Expired as error:
                self._version = ""
                await self._back_off(error, at_once=self._failures == 0)
            except RayTpuError as error:
                await self._back_off(error)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                await self._back_off(self._broken(error))
            except Exception as error:
                # A watch that is no more would leave its waiters waiting for ever.
                log.exception("%s broke", self._asked)
                self._version = ""
                await self._back_off(self._broken(error))

    async def _once(self) -> None:
        """List where that is due, then one watch to its end."""
        self._streaming = False
        if not self._version or self.rhythm.clock() - self._listed >= self._resync:
            await self._list()
        self._streaming = True
        began = self.rhythm.clock()
        if not await self._stream() and self.rhythm.clock() - began < _SHORT_S:
            raise BackendUnreachable(f"{self._asked}: each watch ends at once.")
        self._failures = 0

    async def _list(self) -> None:
        objects, self._version = await self.api.list(self.resource, self._labels)
        self.contents.replace(objects, self._version)
        self._listed = self._heard = self.rhythm.clock()
        self._resync = self.rhythm.around(self.rhythm.resync, self.rhythm.resync / 4)
        if not self.synced:
            self.synced = True
            self.contents.wake_all()

    async def _stream(self) -> bool:
        """Whether anything came."""
        seconds = max(1, round(self.rhythm.around(self.rhythm.watch, min(10.0, self.rhythm.watch / 10))))
        query = {"allowWatchBookmarks": "true", "timeoutSeconds": str(seconds), "resourceVersion": self._version}
        if self._labels:
            query["labelSelector"] = self._labels
        came = False
        async with (
            asyncio.timeout(seconds + _OVERDUE_S),
            self.api.watching(self.resource, query, self.rhythm.silence) as answer,
            contextlib.aclosing(events(self._asked, answer.content.iter_any())) as stream,
        ):
            self._heard, self.fault, self._doubted = self.rhythm.clock(), None, False
            async for event in stream:
                self._take(event)
                came = True
        return came

    def _take(self, event: Event) -> None:
        if event.kind is Kind.DELETED:
            self.contents.remove(event.object)
        elif event.kind is not Kind.BOOKMARK:
            self.contents.put(event.object)
        self._version = event.version
        self._heard = self.rhythm.clock()
        self._failures = 0

    async def _back_off(self, error: RayTpuError, *, at_once: bool = False) -> None:
        self._failures += 1
        self.trouble = error
        lasting = isinstance(error, ForbiddenError | NotInstalledError)
        if lasting or self._failures >= _RESUMES:
            self._version = ""
        silent = self.rhythm.clock() - self._heard >= self.rhythm.patience
        # One 401 of a watch may be a token at its end; the list that follows makes sure.
        sure = lasting and (self._doubted or not self._streaming)
        self._doubted = lasting
        if sure or (silent and self._failures > 1):
            self._tell(error)
        if not at_once:
            await self.rhythm.sleep(self.rhythm.pause(self._failures, lasting=lasting))

    def _tell(self, error: RayTpuError) -> None:
        """Wake everybody, once per kind of fault."""
        if self.fault is None or self.fault.code != error.code:
            self.fault = error
            self.contents.wake_all()

    def _broken(self, error: Exception) -> BackendUnreachable:
        return BackendUnreachable(
            f"{self._asked} broke off: {type(error).__name__}: {error}", "It is taken up again by itself."
        )


def _is_ours(event: Object) -> bool:
    return (event.get("involvedObject") or {}).get("kind") in _INVOLVED_KINDS
