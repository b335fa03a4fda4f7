"""What a listener makes of times by a clock that may be off: the cluster's, which is not Airflow's. Pure."""

from __future__ import annotations

from dataclasses import replace

from airflow_raytpu.model.observation import Observation, Progress

DOUBT_S = 300.0
"""How far off a clock is taken to be at most, as long as nothing new was heard by it."""

_NOISE_S = 60.0
"""A difference that a pause between two looks makes as well: not worth a correction."""


class Ear:
    """Hears the observations of one request, and puts their times onto the listener's own clock.

    News that came between two looks happened between them, whatever its time says: that is how far the clock is off.
    What was there at the first look may be old, or its clock behind: it is believed to be new by ``DOUBT_S`` at most,
    so that a deadline is never early, and late by no more than that when a listener begins anew.
    """

    def __init__(self) -> None:
        self._heard: Progress | None = None
        self._looked_at = 0.0
        self._behind_s = 0.0

    def hear(self, seen: Observation, now: float) -> Observation:
        """*seen* at *now* (seconds since the epoch), with its times as *now* is measured."""
        progress = seen.progress
        if progress is None:
            return seen
        if self._heard is None:
            self._behind_s = min(DOUBT_S, now - progress.at)
        elif _mark(progress) != _mark(self._heard):
            earliest, latest = self._looked_at - progress.at, now - progress.at
            self._behind_s = 0.0 if earliest <= 0 <= latest else latest
        self._heard, self._looked_at = progress, now
        if abs(self._behind_s) <= _NOISE_S:
            return seen
        began = seen.began + self._behind_s if seen.began else 0.0
        return replace(seen, progress=_moved(progress, self._behind_s), began=began)


def _mark(progress: Progress) -> tuple[str, int, float]:
    return progress.phase, progress.done, progress.at


def _moved(progress: Progress, by_s: float) -> Progress:
    times = {name: getattr(progress, name) for name in ("at", "slice_at", "first_at")}
    return replace(progress, **{name: at + by_s if at else at for name, at in times.items()})
