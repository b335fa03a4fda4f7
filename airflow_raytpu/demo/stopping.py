"""Being asked to stop, by Ctrl-C, a closing terminal or a signal, as an exception that unwinds in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """A signal asked for the end; ``status`` is what the shell expects to see then."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@contextmanager
def signals_as_errors() -> Iterator[None]:
    """Within, SIGINT, SIGTERM and SIGHUP raise :class:`Stopped`; a SIGHUP that is ignored stays so."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(128 + number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
