"""``WatchTrigger``: one request's watch in the triggerer, one event at its end, and the end of its work at a kill."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.hooks.raytpu import Place, RayTpuHook, setting
from airflow_raytpu.model.errors import BackendUnreachable, RayTpuError
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.verdict import Verdict
from airflow_raytpu.storage import attempts, objects
from airflow_raytpu.triggers import ownership, stopping
from airflow_raytpu.triggers.relay import Relay
from airflow_raytpu.triggers.watching import watch

_ASK_AGAIN_S = 30.0

_ENDING: set[asyncio.Task[None]] = set()
"""What must come to its end; the event loop itself keeps no task alive."""


async def _to_its_end(work: Coroutine[Any, Any, None], name: str) -> None:
    """Await *work*, which goes on where whoever awaits it is cancelled.

    Airflow 3.3.2 cancels a trigger that a user ended again and again until it has ended, also in its clean-up.
    """
    ending = asyncio.create_task(work, name=name)
    _ENDING.add(ending)
    ending.add_done_callback(_ENDING.discard)
    await asyncio.shield(ending)


async def _until_cancelled() -> None:
    """Airflow starts a trigger again that ends without an event, over and over, so one with nothing to do waits."""
    await asyncio.Event().wait()


class WatchTrigger(BaseTrigger):
    """Watches a request from the triggerer and fires its verdict.

    :param request: as :meth:`RayRequest.to_dict` writes it; no secrets.
    :param conn_id: the connection that says where it runs, read again here.
    :param stated: that connection was there when the request was made.
    """

    def __init__(self, request: dict[str, Any], conn_id: str, *, stated: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.request = request
        self.conn_id = conn_id
        self.stated = stated
        self._links: dict[str, str] = {}
        self._relay: Relay | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"request": self.request, "conn_id": self.conn_id, "stated": self.stated},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        request = RayRequest.from_dict(self.request)
        if not await self._is_in_charge(request):
            await _until_cancelled()
        backend = (await self._place()).open()
        try:
            verdict = await self._watch(request, backend)
        finally:
            await _to_its_end(backend.close(), f"close of {request.name}")
        if verdict is None:
            await _until_cancelled()
            return
        # The request itself stays in storage: Airflow writes events to the log in full.
        event = {"request": request.outbox("request"), "verdict": verdict.to_dict(), "links": self._links}
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _is_in_charge(self, request: RayRequest) -> bool:
        """Storage in trouble says nothing about the task, so it is asked again, as long as the request has time."""
        while True:
            try:
                return await ownership.is_in_charge(self.task_instance, request, self.log)
            except BackendUnreachable as error:
                if time.time() > request.limits.total_until:
                    raise
                self.log.warning("Whether this try looks after %s is not known yet: %s", request.name, error.cause)
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _watch(self, request: RayRequest, backend: Backend) -> Verdict | None:
        """The verdict; ``None`` where the task was taken away in the middle, and the work stopped."""
        self._relay = Relay(backend, request, self.log, offset=await self._offset(request))
        watching = asyncio.ensure_future(
            watch(
                backend,
                request,
                log=self.log,
                poll_s=float(setting("poll_interval")),
                publish=self._publish,
                relay=self._relay,
            )
        )
        guarding = asyncio.ensure_future(ownership.until_taken_away(self.task_instance, self.log))
        try:
            await asyncio.wait({watching, guarding}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                return watching.result()
            guarding.result()  # it has ended by itself, or nobody would watch from here on
        finally:
            watching.cancel()
            guarding.cancel()
            await asyncio.wait({watching, guarding})
        await self._stop_if_mine(request, backend)
        return None

    async def cleanup(self) -> None:
        """Remember how far the log was copied. Runs whenever the trigger leaves this process, so it stops nothing."""
        if self._relay is not None and self._relay.offset:
            place = RayRequest.from_dict(self.request).outbox("tail")
            note = {"owner": self._me(), "offset": self._relay.offset}
            await asyncio.to_thread(objects.write_json, place, note)

    async def on_kill(self) -> None:
        """Stop the remote work, where a user ended the task, and not when a triggerer has merely lost it."""
        await _to_its_end(self._stop_after_kill(), f"stop of {self.request['name']}")

    async def _stop_after_kill(self) -> None:
        request = RayRequest.from_dict(self.request)
        try:
            backend = (await stopping.insist(self._place, request.name, self.log)).open()
            try:
                await self._stop_if_mine(request, backend)
            finally:
                await backend.close()
        except Exception:
            # Told here, as Airflow no longer waits for it.
            self.log.exception("%s could not be stopped; it is left to its time to live.", request.name)

    async def _stop_if_mine(self, request: RayRequest, backend: Backend) -> None:
        # Step by step, for what a stop that failed half-way has ended already would pass for work that ended by itself.
        insist = functools.partial(stopping.insist, name=request.name, log=self.log)
        ti, log = self.task_instance, self.log
        if await insist(lambda: ownership.may_stop_deferred(ti, request, backend, log)):
            await insist(lambda: asyncio.to_thread(attempts.use, request, "KILLED"))
            await insist(lambda: backend.stop(request))

    async def _place(self) -> Place:
        return await RayTpuHook(self.conn_id).same_place(stated=self.stated)

    async def _offset(self, request: RayRequest) -> int:
        try:
            note = await asyncio.to_thread(objects.read_record, request.outbox("tail"))
        except RayTpuError:
            return 0  # torn, or out of reach: some lines are copied twice, and none is lost
        offset = note.get("offset") if note and note.get("owner") == self._me() else 0
        return offset if isinstance(offset, int) else 0

    async def _publish(self, known: Mapping[str, str]) -> None:
        from airflow.sdk.execution_time.xcom import XCom

        self._links.update(known)
        ti = self.task_instance
        if ti is not None:
            of_task = {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id, "map_index": ti.map_index}
            for key, value in known.items():
                await asyncio.to_thread(XCom.set, key, value, **of_task)

    def _me(self) -> str:
        return str(getattr(self.task_instance, "id", ""))
