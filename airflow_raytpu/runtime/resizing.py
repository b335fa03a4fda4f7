"""An elastic run between its tries: what sizes it had, and whether it looks for more slices now.

A further slice costs a restart, which is only worth it where the slice stays. So after a growth that led to nothing the
next one is put off, twice as long each time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import ray

from airflow_raytpu.model.errors import LostError
from airflow_raytpu.runtime import relay
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.tally import StepTally
from airflow_raytpu.runtime.tenancy import Tenancy

STEADY_S = 600.0
"""How long more slices must have stayed for the growth to count as a good one."""

_LOOK_S = 3.0
"""Slower than whoever waits for a slice to begin at all looks, so that they come first."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 3600.0
_WISH = "resize"

log = logging.getLogger(__name__)


class ResizeError(LostError):
    """The gang has saved and ended by itself, for a try with more slices. Nothing is lost, so no budget pays for it."""


def wish(request: str) -> str:
    """Why the gang of *request* is to end after its next save; empty where it is not. For rank 0."""
    found = relay.collect(request, _WISH)
    return str(found["why"]) if found else ""


class Sizes:
    """How many slices the tries of a run have, and the search for more beside a try that has fewer than it may.

    :param most: slices that it may have.
    :param tally: is told of them. It knows those of the last try, also where that was another attempt's.
    :param ticks: a clock in seconds that never goes back.
    """

    def __init__(self, request: str, most: int, tally: StepTally, ticks: Callable[[], float] = time.monotonic) -> None:
        self._request, self._most, self._tally, self._ticks = request, most, tally, ticks
        self._grown_at: float | None = None
        self._wished, self._growing = False, False
        self._pause_s, self._not_before = 0.0, 0.0
        self._spare: tuple[str, ...] = ()
        self._counted_at = 0.0

    def begin(self, held: ReservedSlice, step: int) -> None:
        """The next try goes on from *step* with *held*."""
        before, names = self._tally.spent.slices, held.names
        gone, came = set(before) - set(names), set(names) - set(before)
        if before and len(names) != len(before):
            why = "; ".join(filter(None, (_words(gone, "lost"), _words(came, "free"))))
            self._tally.resize(step, len(names), why)
            log.info("going on with %d of %d slices: %s", len(names), self._most, why)
        if before:
            self._judge(len(names) - len(before), bool(came))
        self._tally.take(names, self._most)
        self._wished, self._spare = False, ()

    @contextmanager
    def growing(self, tenancy: Tenancy) -> Iterator[None]:
        """Look for more slices meanwhile, where there may be more."""
        if self._held >= self._most:
            yield
            return
        self._counted_at, self._growing = self._ticks(), True
        try:
            with relay.Pump(lambda: self.turn(tenancy)):
                try:
                    yield
                finally:
                    self._growing = False
        finally:
            self._count()

    def turn(self, tenancy: Tenancy) -> None:
        """Look, where it is time, and tell the gang."""
        now = self._count()
        # Only who calls our checkpoint helper can save and end; others would keep a slice from being used at all.
        if not self._growing or now < self._not_before or not relay.collect(self._request, "loop"):
            return
        self._not_before = now + _LOOK_S
        before = self._spare
        try:
            found = tenancy.more()
        except (ray.exceptions.RayError, RuntimeError, OSError) as error:
            # A look that failed is no harm to the gang that works.
            log.warning("No further slice could be looked for: %s", error)
            self._not_before = now + _FIRST_PAUSE_S
            return
        self._count()
        self._spare = found
        if found == before or not self._growing:
            return  # what was found for a gang that has ended meanwhile, the next try has at once
        if found:
            self._wished = True
            why = _words(found, "free")
            relay.publish(self._request, _WISH, {"why": why})
            log.info("%s: ending at the next save, for %d slices", why, self._held + len(found))
        else:
            relay.drop(self._request, _WISH)
            log.info("%s again before the next save", _words(before, "lost"))
            self._wished = False
            tenancy.rest()
            self._put_off()

    def _judge(self, change: int, came: bool) -> None:
        """What the change since the last try says of the growth that was wished or done."""
        now = self._ticks()
        if change > 0:
            self._grown_at = now
        elif self._wished and not came:
            self._put_off()
        elif change < 0 and self._grown_at is not None:
            if now - self._grown_at < STEADY_S:
                self._put_off()
            else:
                self._pause_s = 0.0
            self._grown_at = None

    def _put_off(self) -> None:
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._not_before = self._ticks() + self._pause_s
        log.info("no further slice is looked for within %.0f s", self._pause_s)

    def _count(self) -> float:
        """Tell the tally for how long spare slices were held up to now, which is returned."""
        now = self._ticks()
        self._tally.spare_s += len(self._spare) / self._most * (now - self._counted_at)
        self._counted_at = now
        return now

    @property
    def _held(self) -> int:
        return len(self._tally.spent.slices)


def _words(names: Collection[str], what: str) -> str:
    return f"slice {' and '.join(sorted(names))} {what}" if names else ""
