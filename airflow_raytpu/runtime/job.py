"""Job: any program of the author's on whole slices, once on the driver or once on each host."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import ray

from airflow_raytpu.model.errors import LostError, StallTimeout
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.placement.plan import SlicePlan, plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import slices
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.hosts import Hosts, session_folder
from airflow_raytpu.runtime.launch import EVICTED, Launch
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import own_slice
from airflow_raytpu.runtime.tries import Tries

_BEAT_S = 10.0
"""How often a program that tells nothing is said to be alive."""

_LOOK_S = 3.0
_FAREWELL_S = 30.0
"""How long a program may take to end once it has returned everywhere."""

_TURN_S = 0.5


def run(request: RayRequest, outbox: Outbox) -> Mapping[str, Any]:
    """Run the program of *request*.

    :raises AuthorError: it raised more often than ``failures`` allows.
    :raises LostError: the slice was lost more often than ``evictions`` allows.
    :raises NoSliceError: no whole slice in time.
    :raises StallTimeout: it had told its progress, and has stopped.
    """
    shape = TpuSlice.parse(request.slice) if request.slice else own_slice(ray.nodes())
    return _Job(request, outbox, plan(shape)).run()


class _Job:
    def __init__(self, request: RayRequest, outbox: Outbox, slice_plan: SlicePlan) -> None:
        self._request, self._outbox, self._plan = request, outbox, slice_plan
        self._arguments = request.arguments
        self._tries = Tries(request, outbox, slice_plan, self._arguments, holds=self._arguments["reserve"])

    def run(self) -> Mapping[str, Any]:
        value, names = self._tries.run(self._once)
        tally = self._tries.tally
        return {
            "value": value,
            "hosts": self._plan.workers,
            "chips": self._plan.devices,
            "slices": list(names),
            "chip_hours": round(self._plan.devices * tally.spent.held_s / 3600, 4),
            **tally.costs(),
        }

    def _once(self, held: ReservedSlice) -> tuple[Any, Sequence[str]]:
        """What the program returned, and the slices that it ran on."""
        value = self._everywhere(held) if self._arguments["per_host"] else self._on_driver(held)
        return value, held.names

    def _vigil(self, held: ReservedSlice) -> _Vigil:
        return _Vigil(self._request, self._outbox, held, self._tries.got_on)

    def _everywhere(self, held: ReservedSlice) -> list[Any]:
        vigil = self._vigil(held)
        with Hosts(self._request.name, held) as hosts:
            hosts.start(self._task(held), self._arguments["env"], self._request.limits.start_s)
            vigil.begin()
            ended = False
            while not ended:
                ended = hosts.wait(_TURN_S)
                news = hosts.news()
                told = [each for each in news if "done" in each]
                # The slowest of those that tell: the others wait for it.
                slowest = min(told, key=lambda each: each["done"], default={})
                if vigil.turn(slowest, answered=all(each.get("answered") for each in news)):
                    hosts.stop()
            return hosts.values

    def _on_driver(self, held: ReservedSlice) -> Any:
        reserved, vigil = self._arguments["reserve"], self._vigil(held)
        task = {**self._task(held), "connect": True, "group": held.group.id.hex() if reserved else None}
        with Launch(task, self._arguments["env"], session_folder()) as process:
            vigil.begin()

            def turn() -> float | None:
                return 0.0 if vigil.turn(process.news(), answered=process.answered) else None

            try:
                return process.wait(turn)
            except AuthorError as error:
                if reserved and (lost := vigil.loss(slices.LOSS_SHOWS_S if error.collateral else 0.0)):
                    raise LostError(f"{lost} The program said: {error.cause}", EVICTED) from error
                raise

    def _task(self, held: ReservedSlice) -> dict[str, Any]:
        arguments = self._arguments
        return {
            **{name: arguments[name] for name in ("how", "entry", "args", "kwargs")},
            "slice": str(self._plan.slice),
            "hosts": [asdict(host) for host in held.hosts],
            "group": None,
            "rank": 0,
            "coordinator": None,
            "connect": False,
            "where": "",
        }


class _Vigil:
    """Watches one try: tells Airflow of it, and sees whether its slices stay whole.

    A program that never says how far it is counts as alive while its processes are; one that has said so once is held
    to ``stall``.

    :param got_on: called once it has said that it is further than before. Its first word does not count: a program
        that goes on from marks of its own begins with what an earlier try did.
    """

    def __init__(
        self,
        request: RayRequest,
        outbox: Outbox,
        held: ReservedSlice,
        got_on: Callable[[], None],
        nodes: Callable[[], list[dict[str, Any]]] = ray.nodes,
    ) -> None:
        self._request, self._outbox, self._held, self._got_on, self._nodes = request, outbox, held, got_on, nodes
        self._beat_at = self._looked_at = self._moved_at = self._answered_at = 0.0
        self._done: int | None = None
        self._least = math.inf

    def begin(self) -> None:
        """The program runs."""
        self._beat_at = self._looked_at = time.time()
        self._outbox.tell(phase="running", first_at=self._outbox.latest.first_at or time.time(), at=time.time())

    def turn(self, news: Mapping[str, Any], *, answered: bool) -> bool:
        """Look once, and tell; whether the program has returned and yet does not end.

        :raises LostError: a held slice is not whole any more.
        :raises StallTimeout: no progress within ``stall``.
        """
        now = time.time()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            if self._request.arguments["reserve"] and (lost := self.loss()):
                raise LostError(lost, EVICTED)
        self._tell(news, now)
        self._answered_at = (self._answered_at or now) if answered else 0.0
        return answered and now - self._answered_at > _FAREWELL_S

    def loss(self, within_s: float = 0.0) -> str:
        """Which hosts of the held slices are gone; empty where all are there, even after *within_s* seconds."""
        return slices.loss(self._held, within_s, self._nodes)

    def _tell(self, news: Mapping[str, Any], now: float) -> None:
        if "done" in news:
            if news["done"] != self._done:
                self._done, self._moved_at = news["done"], now
                # Of several hosts, one that is behind may say its first word last.
                self._least = min(self._least, news["done"])
                if news["done"] > self._least:
                    self._got_on()
            told = {name: news[name] for name in ("done", "total", "unit", "metrics")}
            self._outbox.tell(**told, at=self._moved_at)
            stall = self._request.limits.stall_s
            if now - self._moved_at > stall:
                raise StallTimeout(
                    f"No progress for {now - self._moved_at:.0f} s (stall is {stall:.0f} s).", "Raise stall."
                )
        elif now - self._beat_at >= _BEAT_S:
            self._beat_at = now
            self._outbox.tell(at=now)
        self._outbox.flush()
