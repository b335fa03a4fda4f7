"""Whether the loss is still a number, asked of the devices as rarely as can be."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

_MOST = 4096


class Losses:
    """The losses since the last look. To read one waits for its step, so only the newest is read while all is well.

    :ivar sound_at: the last step whose loss is known to be a number; 0 where none is.
    """

    def __init__(self) -> None:
        self._unread: deque[tuple[int, Any]] = deque(maxlen=_MOST)
        self.sound_at = 0

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """The metrics of one more step."""
        self._unread.append((step, metrics.get("loss")))

    def broken(self, until: int) -> tuple[int, float] | None:
        """The first step whose loss is no number, and what it is; ``None`` where that of step *until* is one."""
        due = [each for each in self._unread if each[0] <= until]
        if not due:
            return None
        step, loss = due[-1]
        if not _is_broken(loss):
            self.sound_at = step
            for _ in due:
                self._unread.popleft()
            return None
        for earlier, value in due:
            if _is_broken(value):
                return earlier, float(value)
            self.sound_at = earlier
        raise AssertionError  # the last of them is broken


def _is_broken(loss: Any) -> bool:
    try:
        return loss is not None and not math.isfinite(float(loss))
    except (TypeError, ValueError, RuntimeError):
        return False  # no scalar, or one whose memory was given away
