"""The driver's eyes on a training run: news from the workers and the cluster, turned into progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.runtime import relay
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.slices import Lookout

_LOOK_INTERVAL_S = 2.0


class Watch:
    """One try's progress. :meth:`turn` is called a few times a second.

    :param on_slice: called when a slice is held, and while none is broken; more than once.
    """

    def __init__(self, request: RayRequest, outbox: Outbox, plan: SlicePlan, on_slice: Callable[[], None]) -> None:
        self._request, self._outbox, self._on_slice = request, outbox, on_slice
        self._held_at = 0.0
        self._looked_at = 0.0
        self._report: dict[str, Any] = {}
        self.lookout = Lookout(plan, lambda seen: outbox.tell(message=seen))
        relay.clear(request.name)
        outbox.tell(phase="waiting for a slice", message="")

    def turn(self) -> None:
        """Look once, and tell."""
        name = self._request.name
        if not self._held_at and not self._hold(relay.collect(name, "gang")):
            return
        if self._outbox.latest.phase == "setting up" and relay.collect(name, "mesh"):
            self._outbox.tell(phase="compiling")
        self._report = relay.collect(name, "report") or self._report
        # A loop that uses the helper tells more, and sooner, than what it reports.
        news = relay.collect(name, "loop") or self._report
        if news:
            self._outbox.tell(phase="training", unit="step", message="", **news)
        self._outbox.flush()

    def held_s(self) -> float:
        """Seconds since the slice was taken, 0 where it never was."""
        return time.time() - self._held_at if self._held_at else 0.0

    @property
    def reported(self) -> dict[str, Any]:
        """The last report of a plain loop, as a result."""
        return {"step": self._report["done"], "metrics": self._report["metrics"]} if self._report else {}

    def _hold(self, gang: dict[str, Any] | None) -> bool:
        if gang is None:
            if time.time() - self._looked_at >= _LOOK_INTERVAL_S:
                self._looked_at = time.time()
                if not any(view.fault for view in self.lookout.look()):
                    # A slice that has healed must not be kept from our own trainer.
                    self._on_slice()
            self._outbox.flush()
            return False
        self._held_at = gang["slice_at"]
        self._on_slice()
        slice_at = self._outbox.latest.slice_at or self._held_at
        self._outbox.tell(phase="setting up", slice_at=slice_at, message=f"on {', '.join(gang['slices'])}")
        return True
