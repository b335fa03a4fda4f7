"""Waiting for whole idle slices: for the sensor, and for a cluster that must prove them before its task is done."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.hooks.raytpu import RayTpuHook
from airflow_raytpu.model.errors import BackendUnreachable, LostError, NoSliceError, RayTpuError, RequestError
from airflow_raytpu.model.observation import ClusterState, Observation
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.slices import SliceState, describe, idle, of_shape, span
from airflow_raytpu.placement.topology import TpuSlice

QUIET_S = 60.0
"""Longest silence in the log."""

MIN_IDLE = "min_idle_slices"
"""Argument of a cluster request: how many slices must be whole and idle before the cluster counts as ready."""

_CALL_LIMIT_S = 45.0
_VERSION = 1

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is waited for.

    :param slice: canonical slice text; one that stands for several slices needs as many.
    :param count: how many of it.
    :param cluster: the cluster that must have them; ``None`` for any one cluster that has.
    :param known: that cluster was there once, so that its absence is loss.
    :param begun_at: when the wait began, in seconds since the epoch.
    :param version: of this format: it lies in Airflow's database while this package is upgraded.
    """

    slice: str
    count: int
    cluster: str | None
    known: bool
    begun_at: float
    timeout_s: float
    version: int = _VERSION

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Wish:
        """:raises RequestError: a newer version of this package wrote it."""
        version = data.get("version", 1)
        if version != _VERSION:
            raise RequestError(
                f"This wish has format version {version}, and only {_VERSION} is known here.",
                "Upgrade airflow_raytpu on the worker and the triggerer together.",
            )
        return cls(**data)

    @property
    def shape(self) -> str:
        return one_of(self.slice)

    @property
    def needed(self) -> int:
        return self.count * TpuSlice.parse(self.slice).num_slices

    @property
    def until(self) -> float:
        return self.begun_at + self.timeout_s

    def granted_by(self, slices: Sequence[SliceState]) -> dict[str, Any] | None:
        """The first cluster that has enough, and its idle slices; ``None`` where none has."""
        found = defaultdict(list)
        for each in idle(of_shape(slices, self.shape)):
            found[each.cluster].append(each.name)
        enough = ({"cluster": name, "slices": names} for name, names in found.items() if len(names) >= self.needed)
        return next(enough, None)

    def describe(self) -> str:
        """``2 whole idle slices v6e:4x4 on cluster shared``."""
        where = f" on cluster {self.cluster}" if self.cluster else ""
        return f"{self.needed} whole idle slice{'s' * (self.needed > 1)} {self.shape}{where}"


def one_of(slice_text: str) -> str:
    """Canonical text of one slice of what may stand for several."""
    return str(replace(TpuSlice.parse(slice_text), num_slices=1))


def picture(slices: Sequence[SliceState], shape: str, now: float = 0.0) -> str:
    """What is there of *shape*, in one line, and where that is nothing, what is there instead."""
    ours = of_shape(slices, shape)
    if ours or not slices:
        return describe(ours, now)
    others = Counter(each.shape for each in slices)
    return f"none present, only {', '.join(f'{count} of {other}' for other, count in sorted(others.items()))}"


class Lookout:
    """Looks again and again until a wish is granted or its time is over.

    :param log: told what is seen: on every change, and once a minute in any case.
    """

    def __init__(
        self,
        backend: Backend,
        wish: Wish,
        *,
        log: Any,
        poll_s: float,
        now: Callable[[], float] = time.time,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._backend = backend
        self._wish = wish
        self._log = log
        self._poll_s = poll_s
        self._now = now
        self._sleep = sleep
        self._seen = wish.known
        self._doubted = False
        self._picture = self._picture_now = "nothing was seen"
        self._told: tuple[str, float] | None = None

    async def run(self) -> dict[str, Any]:
        """What granted the wish.

        :raises NoSliceError: its time is over.
        :raises LostError: the cluster was there and is gone.
        """
        while (granted := await self.look()) is None:
            left = self._wish.until - self._now()
            if left <= 0:
                raise self.too_late()
            self._tell(left)
            await self._sleep(min(self._poll_s, left))
        return granted

    async def look(self) -> dict[str, Any] | None:
        """One look: what grants the wish now.

        :raises LostError: as :meth:`run`.
        """
        try:
            async with asyncio.timeout(_CALL_LIMIT_S):
                slices = await self._backend.slices(self._wish.cluster)
        except LostError as error:
            self._doubt(error)
        except BackendUnreachable as error:
            self._note(f"no answer ({error.cause})")
        except TimeoutError:
            self._note(f"no answer within {_CALL_LIMIT_S:.0f} s")
        else:
            self._seen, self._doubted = True, False
            shape = self._wish.shape
            self._note(picture(slices, shape), picture(slices, shape, self._now()))
            return self._wish.granted_by(slices)
        return None

    @property
    def seen(self) -> str:
        """What the last look showed."""
        return self._picture_now

    def too_late(self) -> NoSliceError:
        return NoSliceError(
            f"Not {self._wish.describe()} within {span(self._wish.timeout_s)} (timeout): {self._picture_now}.",
            "Raise timeout, free a slice, or ask for fewer or smaller ones.",
        )

    def _doubt(self, error: LostError) -> None:
        """Before a cluster was ever seen it may yet come; after that, its absence is believed when seen twice."""
        if self._seen and self._doubted:
            raise error
        self._doubted = self._seen
        self._note(error.cause.rstrip("."))

    def _note(self, seen: str, in_full: str = "") -> None:
        self._picture, self._picture_now = seen, in_full or seen

    def _tell(self, left: float) -> None:
        now = self._now()
        if self._told is not None:
            said, at = self._told
            if said == self._picture and now - at + self._poll_s <= QUIET_S:
                return
        self._told = (self._picture, now)
        self._log.info("waiting for %s: %s; gives up in %s", self._wish.describe(), self._picture_now, span(left))


async def proven(backend: Backend, request: RayRequest, seen: Observation) -> Observation:
    """*seen*, with what a ready cluster lacks of the idle slices that its request asks for.

    :raises BackendUnreachable: no answer.
    """
    wanted = request.arguments.get(MIN_IDLE, 0)
    if request.kind.is_job or not wanted or seen.cluster is not ClusterState.READY:
        return seen
    slices = await backend.slices(request.cluster_name)
    shape = one_of(request.slice)
    have = len(idle(of_shape(slices, shape)))
    if have >= wanted:
        return seen
    lacking = f"{have} of {wanted} whole idle slices {shape}: {picture(slices, shape, time.time())}"
    return replace(seen, lacking=lacking, in_use=any(each.holders for each in slices))


class CapacityTrigger(BaseTrigger):
    """Waits for whole idle slices from the triggerer, and fires what granted the wish, or the error.

    :param wish: the fields of :class:`Wish`.
    :param conn_id: the connection that says where to look, read again here.
    :param stated: that connection was there when the task began.
    """

    def __init__(self, wish: dict[str, Any], conn_id: str, poll_s: float, *, stated: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wish = wish
        self.conn_id = conn_id
        self.poll_s = poll_s
        self.stated = stated

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"wish": self.wish, "conn_id": self.conn_id, "poll_s": self.poll_s, "stated": self.stated},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent(await self._event())  # type: ignore[no-untyped-call]

    async def _event(self) -> Mapping[str, Any]:
        try:
            backend = (await RayTpuHook(self.conn_id).same_place(stated=self.stated)).open()
            try:
                return {
                    "granted": await Lookout(backend, Wish.from_dict(self.wish), log=self.log, poll_s=self.poll_s).run()
                }
            finally:
                await backend.close()
        except RayTpuError as error:
            return {"code": error.code, "cause": error.cause, "lever": error.lever}
