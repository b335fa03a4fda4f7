"""Whether anybody still wants a simulated cluster."""

from __future__ import annotations

import time
from pathlib import Path


class Heartbeat:
    """How long nobody has shown interest. Only changes of the file's time count, so no step of the clock matters."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "heartbeat"
        self._last = 0
        self._seen_at = time.monotonic()

    def silence(self) -> float | None:
        """Seconds since the last sign; ``None`` where the folder is gone."""
        try:
            last = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        now = time.monotonic()
        if last != self._last:
            self._last, self._seen_at = last, now
        return now - self._seen_at
