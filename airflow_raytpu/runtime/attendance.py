"""Work that Airflow no longer looks at ends itself, so that it holds no slice for nobody.

Whoever watches an attempt writes a sign of life beside its request now and then. A user may end a task when no process
of Airflow's is there to say so to the work: deferred, and its trigger not begun yet (Airflow 3.3).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.runtime import files

_LOOK_S = 30.0

log = logging.getLogger(__name__)


def _end_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class Attendance:
    """Looks after the sign of life of *request*, from a thread of its own.

    Only whether it changes counts, and only by this machine's clock: Airflow's may be another.

    :param end: ends the work in good order.
    :param read: a JSON file's value, ``None`` where there is none.
    :param clock: seconds, never set back.
    """

    def __init__(
        self,
        request: RayRequest,
        end: Callable[[], None] = _end_this_process,
        read: Callable[[str], Any] = files.read_json,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request, self._end, self._read, self._clock = request, end, read, clock
        self._sign: Any = None
        self._seen_at = clock()

    def start(self) -> None:
        threading.Thread(target=self._run, name="attendance", daemon=True).start()

    def is_over(self) -> bool:
        """Look once; whether nobody has looked for too long."""
        now = self._clock()
        try:
            sign = self._read(self._request.outbox("beat"))
        except (OSError, ValueError) as error:
            # Storage in trouble says nothing about Airflow.
            log.debug("The sign of life cannot be read: %s", error)
            self._seen_at = now
            return False
        if sign != self._sign:
            self._sign, self._seen_at = sign, now
        # With none at all, whoever watches is of a release that gives none.
        return self._sign is not None and now - self._seen_at > self._request.unwatched_s

    def _run(self) -> None:
        while not self.is_over():
            time.sleep(min(_LOOK_S, self._request.unwatched_s / 6))
        log.warning("Nobody has looked at %s for %.0f s: it ends.", self._request.name, self._request.unwatched_s)
        self._end()
