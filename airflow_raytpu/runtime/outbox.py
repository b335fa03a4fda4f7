"""What a driver tells Airflow: progress while it works, and one outcome at the end. One writer, the driver."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow_raytpu.model.observation import Progress
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.runtime import files

MIN_INTERVAL_S = 1.0
"""Shortest time between two writes of progress: GCS takes one write a second to the same object."""

_RESULT_TRIES = 5

log = logging.getLogger(__name__)


class Outbox:
    """The files of one attempt that the runtime writes.

    :param write: ``(uri, JSON value)``, atomic.
    :param clock: seconds since the epoch.
    """

    def __init__(
        self,
        request: RayRequest,
        write: Callable[[str, Any], None] = files.write_json,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._request = request
        self._write = write
        self._clock = clock
        self._lock = threading.Lock()
        self._written_at = -math.inf
        self._pending = False
        self.latest = Progress(request=request.name, phase="starting", at=clock())

    def tell(self, **changes: Any) -> None:
        """Change the progress and write it, at once on a new phase, else at most once a second.

        ``at`` follows by itself when ``done`` or ``phase`` changes. What is held back is written by :meth:`flush`.
        """
        with self._lock:
            if isinstance(changes.get("metrics"), Mapping):
                changes["metrics"] = finite(changes["metrics"])
            before, after = self.latest, replace(self.latest, **changes)
            if after == before:
                return
            moved = after.done != before.done or after.phase != before.phase
            if moved and "at" not in changes:
                after = replace(after, at=self._clock())
            if after.done > 0 and not after.first_at:
                after = replace(after, first_at=after.at)
            self.latest, self._pending = after, True
            if after.phase != before.phase:
                log.info("%s", after.describe())
                self._put()
            else:
                self._put_if_due()

    def wait(self, seen: str) -> None:
        """What is seen while a slice is waited for. A second wait has a time of its own: no stall, no late start."""
        again = {}
        if self.latest.slice_at:
            again["at" if self.latest.first_at else "slice_at"] = self._clock()
        self.tell(message=seen, **again)

    def flush(self) -> None:
        """Write what was held back, if its time has come."""
        with self._lock:
            if self._pending:
                self._put_if_due()

    def finish(self, outcome: Outcome) -> None:
        """Write the outcome, last of all. Tried several times: nothing else can say how the attempt ended."""
        with self._lock:
            if self._pending:
                self._put()
        for left in reversed(range(_RESULT_TRIES)):
            try:
                self._write(self._request.outbox("result"), outcome.to_dict())
                return
            except OSError as error:
                if not left:
                    raise
                log.warning("The result could not be written, %d tries left: %s", left, error)
                time.sleep(1.0)

    def _put_if_due(self) -> None:
        if self._clock() - self._written_at >= MIN_INTERVAL_S:
            self._put()

    def _put(self) -> None:
        self._written_at, self._pending = self._clock(), False
        try:
            self._write(self._request.outbox("progress"), self.latest.to_dict())
        except OSError as error:
            # Progress is news, not work: the next one may get through, and a deadline notices if none does.
            log.warning("Progress could not be written: %s", error)


def speak() -> None:
    """Let this package's log lines, and no other's, into the process's output, which is the job's log."""
    logger = logging.getLogger("airflow_raytpu")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        # Orbax tells every save in a dozen lines, from every host.
        logging.getLogger("absl").setLevel(logging.WARNING)


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among *metrics* that JSON can hold."""
    numbers = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        if math.isfinite(number):
            numbers[str(name)] = number
    return numbers
