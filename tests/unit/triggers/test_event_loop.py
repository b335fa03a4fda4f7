"""A triggerer's event loop is everybody's: nothing of ours waits in it for storage or for Airflow."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.xcom import XCom

from airflow_raytpu.backends import outbox
from airflow_raytpu.backends.base import LogLine
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import Observation
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.storage import attempts, objects
from airflow_raytpu.triggers import ownership
from airflow_raytpu.triggers.watch import WatchTrigger
from tests.doubles.airflow_side import TaskInstance
from tests.doubles.scripted import ScriptedBackend, running, succeeded

WAITS = ("open", "os.", "shutil.", "glob.", "subprocess.", "socket.getaddrinfo")
"""Python's audit events of what keeps a thread waiting."""


class Listener:
    """Notes what waits in one thread; Python keeps audit hooks for ever, so it is turned off rather than removed."""

    def __init__(self, folder: Path) -> None:
        self.waited: list[tuple[str, str]] = []
        self.elsewhere = 0
        self._thread = threading.get_ident()
        self._folder = str(folder)
        self.on = True
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or not event.startswith(WAITS):
            return
        about = str(arguments[0]) if arguments else ""
        if threading.get_ident() != self._thread:
            self.elsewhere += self._folder in about
        # Modules that are imported at first use are read in whatever thread that is, once.
        elif self._folder in about or not event.startswith(("open", "os.")):
            self.waited.append((event, about))


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(tmp_path)
    yield listener
    listener.on = False


class WithOutbox(ScriptedBackend):
    """Looks into the request's outbox as every backend does."""

    async def observe(self, request: RayRequest) -> Observation:
        await outbox.read(request)
        return await super().observe(request)


async def test_nothing_waits_in_the_event_loop(heard: Listener, tmp_path: Path, place_with, monkeypatch) -> None:
    asked_in: set[int] = set()

    def states(**_: Any) -> dict[str, Any]:
        asked_in.add(threading.get_ident())
        return {"manual__1": {"train": "deferred"}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states))
    monkeypatch.setattr(XCom, "set", lambda *_, **__: asked_in.add(threading.get_ident()))
    monkeypatch.setattr(ownership, "LOOK_EVERY_S", 0.001)
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0.001")
    request = RayRequest(
        identity=Identity(deployment="d", dag_id="digits", task_id="train", run_id="manual__1"),
        kind=Kind.TRAIN,
        slice="v6e:4x4",
        storage=f"file://{tmp_path}/storage/digits",
        limits=Deadlines().since(time.time()),
    )
    backend, ti = WithOutbox([running(at=time.time(), dashboard="http://d")] * 9 + [succeeded()]), TaskInstance()
    backend.lines = [LogLine(text="hello", offset=6)]
    place_with(backend)
    heard.on = False
    attempts.take(request, ti.id, "g")
    objects.write_json(request.outbox("tail"), {"owner": ti.id, "offset": 0})
    heard.on = True
    trigger = WatchTrigger(request.to_dict(), "raytpu_default")
    trigger._task_instance = ti
    assert len([event async for event in trigger.run()]) == 1
    await trigger.cleanup()
    await trigger.on_kill()
    assert heard.waited == []
    assert heard.elsewhere > 10
    assert asked_in
    assert threading.get_ident() not in asked_in


def test_what_waits_is_heard(heard: Listener, tmp_path: Path) -> None:
    objects.write_json(f"file://{tmp_path}/a.json", {})
    assert "open" in {event for event, _ in heard.waited}
