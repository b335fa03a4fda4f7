"""The job's log, copied into the task's log while the watch goes on."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.model.errors import RayTpuError
from airflow_raytpu.model.request import RayRequest

_PAUSE_S = 5.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WARNED_AFTER = 3


class Relay:
    """Copies lines in the background. Its trouble is told, and never decides anything.

    :param offset: where in the job's log to begin, in bytes.
    """

    def __init__(
        self,
        backend: Backend,
        request: RayRequest,
        log: Any,
        *,
        offset: int = 0,
    ) -> None:
        self.offset = offset
        self._backend = backend
        self._request = request
        self._log = log
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; more than once is the same as once."""
        if self._task is None and self._request.kind.is_job:
            self._task = asyncio.create_task(self._copy(), name=f"log of {self._request.name}")

    async def finish(self, within_s: float) -> None:
        """Let the last lines arrive, for *within_s* at most; say so where they do not."""
        if self._task is not None:
            done, _ = await asyncio.wait({self._task}, timeout=within_s)
            if not done:
                self._log.warning("The last of the job's log did not come within %g s; it is not copied.", within_s)
        await self.close()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _copy(self) -> None:
        failures = 0
        while True:
            try:
                async for line in self._backend.tail(self._request, self.offset):
                    self._log.info("%s", _COLOUR.sub("", line.text))
                    self.offset = line.offset
                    failures = 0
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the watch must go on without the log
                failures += 1
                if failures == _WARNED_AFTER:
                    words = error.cause if isinstance(error, RayTpuError) else repr(error)
                    self._log.warning("The job's log cannot be read at present: %s", words)
                await asyncio.sleep(_PAUSE_S)
            else:
                return
