"""The driver's eyes on a training run: news from the workers, turned into progress."""

from __future__ import annotations

from typing import Any

from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.runtime import relay
from airflow_raytpu.runtime.outbox import Outbox


class Watch:
    """One try's progress on a slice that is held. :meth:`turn` is called a few times a second."""

    def __init__(self, request: RayRequest, outbox: Outbox) -> None:
        self._request, self._outbox = request, outbox
        self._report: dict[str, Any] = {}
        relay.clear(request.name)

    def turn(self) -> None:
        """Look once, and tell."""
        name = self._request.name
        if self._outbox.latest.phase == "setting up" and relay.collect(name, "mesh"):
            self._outbox.tell(phase="compiling", message="")
        self._report = relay.collect(name, "report") or self._report
        # A loop that uses the helper tells more, and sooner, than what it reports.
        news = relay.collect(name, "loop") or self._report
        if news:
            self._outbox.tell(phase="training", unit="step", message="", **news)
        self._outbox.flush()

    @property
    def reported(self) -> dict[str, Any]:
        """The last report of a plain loop, as a result."""
        return {"step": self._report["done"], "metrics": self._report["metrics"]} if self._report else {}
