"""One line to each API server per event loop, however many tasks use it; and calls that are tried again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import tenacity

from airflow_raytpu.backends.kuberay.credentials import Access, Line, Loaded
from airflow_raytpu.backends.kuberay.refusals import Answer, Asked, passes
from airflow_raytpu.model.errors import BackendUnreachable

_CONNECT_S = 5.0
_TRIES_UNKNOWN = 3
"""How often a call is answered 401 before it is believed."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long one call may take and how it is tried again; all in seconds.

    :param once: one try.
    :param whole: after this no further try is made; outlasts the restart of an API server.
    """

    once: float = 10.0
    whole: float = 45.0
    first_pause: float = 0.2
    longest_pause: float = 4.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def pause(self, tries: int) -> float:
        """A random pause after *tries* tries, so that tasks which failed together do not ask again together."""
        return spread(self.first_pause, self.longest_pause, tries)


def spread(first_s: float, longest_s: float, tries: int) -> float:
    """A random pause in seconds that doubles with each of *tries*, up to *longest_s*."""
    most = min(longest_s, first_s * 2.0 ** min(tries - 1, 16))
    return most * random.uniform(0.5, 1.0)  # noqa: S311 - only spreads the load


_lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Line]] = weakref.WeakKeyDictionary()


class Connection:
    """One client's share of its key's line, taken at first use and given back by :meth:`close`."""

    def __init__(self, access: Access, pace: Pace) -> None:
        self._access = access
        self._key = access.key
        self._pace = pace
        self._line: Line | None = None

    async def close(self) -> None:
        """The last user of the line closes its connections."""
        line, self._line = self._line, None
        if line is None:
            return
        line.users -= 1
        if line.users == 0:
            loop = asyncio.get_running_loop()
            lines = _lines[loop]
            del lines[self._key]
            if not lines:
                del _lines[loop]
            await line.close()

    async def loaded(self) -> Loaded:
        """The credentials of the moment."""
        if self._line is None:
            lines = _lines.setdefault(asyncio.get_running_loop(), {})
            self._line = lines.setdefault(self._key, Line())
            self._line.users += 1
        return await self._line.loaded(self._access)

    async def refused(self, loaded: Loaded) -> None:
        """Tell that *loaded* was answered 401."""
        if self._line is not None:
            await self._line.refused(loaded)

    @contextlib.asynccontextmanager
    async def open(
        self, method: str, path: str, timeout: aiohttp.ClientTimeout, **body: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request; its answer, whatever it says, while the connection is open."""
        loaded = await self.loaded()
        async with loaded.using():
            headers = {**await loaded.headers(), **body.pop("headers", {})}
            async with loaded.session.request(
                method,
                loaded.host + path,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                **loaded.route(),
                **body,
            ) as answer:
                if answer.status == 401:
                    await self.refused(loaded)
                yield answer

    async def ask(
        self, asked: Asked, method: str, path: str, query: Mapping[str, str] | None = None, **body: Any
    ) -> Answer:
        """One call, tried again while the fault may pass; the last answer, which may be an error.

        :raises BackendUnreachable: no answer at all.
        """
        began, pace = self._pace.clock(), self._pace
        unknown = 0

        def again(answer: Answer) -> bool:
            nonlocal unknown
            unknown += answer.status == 401
            return passes(asked, answer) or (answer.status == 401 and unknown < _TRIES_UNKNOWN)

        def pause(state: tenacity.RetryCallState) -> float:
            outcome = state.outcome
            told = outcome.result().pause if outcome is not None and not outcome.failed else 0.0
            left = max(0.0, began + pace.whole - pace.clock())
            return min(left, max(told, pace.pause(state.attempt_number)))

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_may_pass) | tenacity.retry_if_result(again),
            stop=lambda _: pace.clock() - began >= pace.whole,
            wait=pause,
            sleep=pace.sleep,
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        try:
            answer: Answer = await retrying(self._once, method, path, params=dict(query or {}), **body)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            tries = retrying.statistics.get("attempt_number", 1)
            raise _unreachable(asked, error, tries, pace.clock() - began) from error
        return answer

    async def _once(self, method: str, path: str, **body: Any) -> Answer:
        timeout = aiohttp.ClientTimeout(total=self._pace.once, sock_connect=_CONNECT_S)
        async with self.open(method, path, timeout, **body) as answer:
            return await read(answer)


async def read(answer: aiohttp.ClientResponse) -> Answer:
    """The whole of an answer."""
    told = answer.headers.get("Retry-After", "")
    return Answer(answer.status, await answer.text(errors="replace"), float(told) if told.isdigit() else 0.0)


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.InvalidURL):
        return False
    return isinstance(error, aiohttp.ClientError | OSError | TimeoutError)


def _unreachable(asked: Asked, error: Exception, tries: int, seconds: float) -> BackendUnreachable:
    if isinstance(error, aiohttp.ClientSSLError):
        lever = "Give the Kubernetes connection the CA certificate of that server."
    else:
        lever = "Look whether the API server runs, and whether this machine may reach it."
    return BackendUnreachable(
        f"The API server gave no answer to {asked} in {tries} {'try' if tries == 1 else 'tries'}, "
        f"{seconds:.0f} s: "
        f"{type(error).__name__}: {error}",
        lever,
    )
