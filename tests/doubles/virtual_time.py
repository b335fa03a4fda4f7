"""A clock that only its own sleepers move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class VirtualTime:
    """``clock`` and ``sleep`` for what takes them.

    :ivar slept: every pause, in seconds.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self._due: list[tuple[float, Callable[[], Awaitable[None]]]] = []

    def clock(self) -> float:
        return self.now

    def after(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        """Do *work* in the first sleep that reaches so far."""
        self._due.append((self.now + seconds, work))

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        due = [work for when, work in self._due if when <= self.now]
        self._due = [(when, work) for when, work in self._due if when > self.now]
        for work in due:
            await work()
        await asyncio.sleep(0)
