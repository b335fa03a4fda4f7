"""What a loop's rank 0 can say of where its time goes, for :class:`airflow_raytpu.model.goodput.Goodput`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from airflow_raytpu.model.goodput import Pace


class Stopwatch:
    """Of a loop that uses the helper.

    :param clock: seconds since the epoch; :param ticks: a clock in seconds that never goes back.
    """

    def __init__(self, clock: Callable[[], float], ticks: Callable[[], float]) -> None:
        self._clock, self._ticks = clock, ticks
        self._first_at = 0.0
        self.begin(0)

    def begin(self, step: int) -> None:
        """The loop has its state, and *step* steps behind it."""
        self._pace, self._begun = Pace(began=step, begun_at=self._clock()), self._ticks()

    def at(self, step: int, blocked_s: float) -> dict[str, Any]:
        """How it goes now that *step* is done; the first time is the first step.

        :param blocked_s: for how long it has stood still for saves.
        """
        now = self._ticks()
        if not self._pace.first:
            self._first_at = now
            self._pace = replace(self._pace, first=step, first_s=now - self._begun)
        self._pace = replace(self._pace, reached=step, since_s=now - self._first_at, blocked_s=blocked_s)
        return asdict(self._pace)


class Done:
    """The steps that were handed to the devices, and the newest that they are done with. Never waits for them."""

    def __init__(self) -> None:
        self._handed: deque[tuple[int, Mapping[str, Any]]] = deque()
        self.newest: tuple[int, Mapping[str, Any]] = 0, {}

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One more step; it is done once its metrics are there."""
        self._handed.append((step, metrics))
        while self._handed and all(map(_is_there, self._handed[0][1].values())):
            self.newest = self._handed.popleft()


def _is_there(value: Any) -> bool:
    try:
        return bool(value.is_ready())
    except (AttributeError, RuntimeError):
        return True  # no array of JAX, or one whose memory was given away


def of_reports(began: int, begun_at: float, first: Mapping[str, Any], last: Mapping[str, Any]) -> Pace:
    """Of a loop that only reports, from its *first* report and its *last* one.

    :param begun_at: when the mesh stood; nothing tells when such a loop has its state.
    """
    return Pace(
        began=began,
        first=first["done"],
        reached=last["done"],
        begun_at=begun_at,
        first_s=first["at"] - begun_at,
        since_s=last["at"] - first["at"],
    )
