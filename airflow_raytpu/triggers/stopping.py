"""Ending remote work though its place may be in trouble: tried again for a while, then left to its time to live."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

_TRIES = 6
_TRY_LIMIT_S = 45.0
_LONGEST_PAUSE_S = 10.0
"""With one try before it, less than the minute for which a log may be silent."""


async def insist(
    step: Callable[[], Awaitable[_T]],
    name: str,
    log: Any,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> _T:
    """Take a *step* towards the end of the request *name*, again where it fails; what it returns.

    :param log: told of each try that fails.
    :raises Exception: what the last try failed with.
    """
    for attempt in itertools.count(1):
        try:
            async with asyncio.timeout(_TRY_LIMIT_S):
                return await step()
        except Exception as error:  # whatever it is, the work may still run
            log.warning("%s could not be stopped (try %d): %s", name, attempt, str(error) or repr(error))
            if attempt == _TRIES:
                raise
        await sleep(min(2.0**attempt, _LONGEST_PAUSE_S))
    raise AssertionError  # count() does not end
