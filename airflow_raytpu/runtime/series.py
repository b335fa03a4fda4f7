"""The driver's side of a run's series of metrics: kept in memory, and written as a whole now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.series import FOLDER, Attempt, Point, name
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.outbox import finite

_EVERY_S = 10.0
"""Between two writes: what a killed driver loses of the picture. A file has at most some hundred kilobytes."""

log = logging.getLogger(__name__)


class Series:
    """The series of one attempt. An attempt whose driver is started anew goes on with it.

    :param read: the content of a URI, ``None`` where there is none; :param write: replaces it, atomically.
    """

    def __init__(
        self,
        request: RayRequest,
        read: Callable[[str], bytes | None] = files.read_bytes,
        write: Callable[[str, bytes], None] = files.write_bytes,
    ) -> None:
        self.uri = f"{request.storage}/{FOLDER}"
        self._file = f"{self.uri}/{name(request.identity.attempt)}"
        self._write = write
        self._written_at = 0.0
        self._pending = False
        try:
            text = (read(self._file) or b"").decode(errors="replace")
        except OSError as error:
            log.warning("The series %s could not be read and begins anew: %s", self._file, error)
            text = ""
        self._attempt = Attempt(text)

    def begin(self, step: int) -> None:
        """A try goes on from *step*."""
        self._attempt.begin(step)
        self._pending = True

    def add(self, news: Mapping[str, Any]) -> None:
        """What a loop told of a step."""
        point = Point(
            step=news["done"], at=news["at"], rate=news.get("rate", 0.0), metrics=finite(news.get("metrics") or {})
        )
        self._attempt.add(point)
        self._pending = True

    def flush(self, now: float, *, at_once: bool = False) -> None:
        """Write what is new, where it is time to.

        :param now: seconds since the epoch.
        """
        if not self._pending or (now - self._written_at < _EVERY_S and not at_once):
            return
        self._written_at, self._pending = now, False
        try:
            self._write(self._file, self._attempt.text().encode())
        except OSError as error:
            # A picture, not the work: the next write has all of it.
            log.warning("The series %s could not be written: %s", self._file, error)
            self._pending = True
