"""The driver's eyes on a training run: news from the workers, as progress, as a series, and as what time went into."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow_raytpu.model.goodput import Pace
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.runtime import relay
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.pacing import of_reports
from airflow_raytpu.runtime.series import Series
from airflow_raytpu.runtime.tally import StepTally

_SILENT = "the loop never reported a step yet: by checkpoints.step, or ray.train.report"
"""Where it hangs, compiles for long, or works and says nothing of it, a deadline ends it with these words."""

_COUNT_S = 10.0
"""Between two words of what is spent, where there is no news: what a killed driver does not count."""


class Watch:
    """One try's progress on a slice that is held. :meth:`turn` is called a few times a second."""

    def __init__(
        self,
        request: RayRequest,
        outbox: Outbox,
        tally: StepTally,
        series: Series,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._request, self._outbox, self._tally, self._series = request, outbox, tally, series
        self._clock = clock
        self._report: dict[str, Any] = {}
        self._first: dict[str, Any] = {}
        self._news: Mapping[str, Any] = {}
        self._mesh_at = 0.0
        self._held = False
        self._counted_at = 0.0
        relay.clear(request.name)

    def hold(self) -> None:
        """From now on slices are held."""
        self._tally.wait(self._clock())
        self._held = True

    def end(self) -> None:
        """The try is over, and its slices are held no more."""
        if self._held:
            self._tally.end(self._pace(), self._clock())
        self._held = False
        self._series.flush(self._clock(), at_once=True)

    def turn(self) -> None:
        """Look once, and tell."""
        name = self._request.name
        if not self._mesh_at and (mesh := relay.collect(name, "mesh")):
            self._mesh_at = mesh["at"]
        if self._outbox.latest.phase == "setting up" and self._mesh_at:
            self._outbox.tell(phase="compiling", message=_SILENT)
        self._report = relay.collect(name, "report") or self._report
        self._first = self._first or self._report
        # A loop that uses the helper tells more, and sooner, than what it reports.
        news = relay.collect(name, "loop") or self._report
        fresh, self._news = news != self._news, news
        if news and fresh:
            self._series.add(news)
        told = {key: value for key, value in news.items() if key != "pace"}
        if told:
            told |= {"phase": "training", "unit": "step", "message": ""}
        self._outbox.tell(**told, **self._spent(fresh))
        self._outbox.flush()
        self._series.flush(self._clock())

    def _spent(self, fresh: bool) -> dict[str, Any]:
        now = self._clock()
        if not self._held or not (fresh or now - self._counted_at >= _COUNT_S):
            return {}
        self._counted_at = now
        return {"spent": self._tally.so_far(self._pace(), now).to_dict()}

    def _pace(self) -> Pace:
        began = self._tally.began_from[-1] if self._tally.began_from else 0
        if pace := self._news.get("pace"):
            return Pace(**pace)
        if self._first:
            return of_reports(began, self._mesh_at, self._first, self._report)
        return Pace(began=began, begun_at=self._mesh_at)

    @property
    def reported(self) -> dict[str, Any]:
        """The last report of a plain loop, as a result."""
        return {"step": self._report["done"], "metrics": self._report["metrics"]} if self._report else {}
