"""Airflow ends a task in the middle of its work on a worker: the remote work is stopped, by whoever owns it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from airflow.sdk.exceptions import AirflowTaskTerminated

from airflow_raytpu.hooks.raytpu import Place
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.storage import attempts
from airflow_raytpu.triggers import ownership


class Killable:
    """Half of an operator: what happens when it is killed."""

    log: Any
    _loop: asyncio.AbstractEventLoop | None = None
    _killed: asyncio.Event | None = None
    _held: tuple[RayRequest, Place] | None = None

    def on_kill(self) -> None:
        # Called in a signal handler, in the middle of anything: only ring the bell that the event loop listens to.
        if self._loop is not None and self._killed is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._killed.set)

    def holds(self, request: RayRequest, place: Place) -> None:
        """Say what is to be stopped from now on."""
        self._held = (request, place)

    async def unless_killed(self, work: Coroutine[Any, Any, Any], context: Any) -> Any:
        """Do *work*, unless Airflow ends the task in the middle of it."""
        self._loop, self._killed = asyncio.get_running_loop(), asyncio.Event()
        working, bell = asyncio.ensure_future(work), asyncio.ensure_future(self._killed.wait())
        try:
            await asyncio.wait({working, bell}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        finally:
            working.cancel()
            bell.cancel()
            await asyncio.wait({working, bell})
        await self._stop_if_mine(context)
        raise AirflowTaskTerminated("Airflow ended this try.")

    async def _stop_if_mine(self, context: Any) -> None:
        if self._held is None:
            return
        request, place = self._held
        if not await ownership.may_stop(context["ti"], request, self.log):
            return
        attempts.use(request, "KILLED")
        backend = place.open()
        try:
            await backend.stop(request)
        finally:
            await backend.close()
