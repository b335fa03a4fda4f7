"""A trigger that breaks, or is cancelled, at any await: its neighbours go on, and a worker takes its watch over."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger

from airflow_raytpu.backends.base import LogLine
from airflow_raytpu.model.observation import Observation
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.operators import JaxTrainerOperator
from airflow_raytpu.triggers import ownership
from airflow_raytpu.triggers.capacity import CapacityTrigger, Wish
from airflow_raytpu.triggers.watch import WatchTrigger
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, running, succeeded, tpu_slice

CLUSTER = {"cluster": "shared", "slice": "v6e:4x4"}

WITHIN_S = 30.0
"""So that a hang is a failure of its own; nothing here takes a second."""

MOST = 400
"""More awaits than one watch of this length has."""


class PoisonError(Exception):
    """No error of ours, nor one that anybody expects."""


@dataclass
class Poison:
    """Strikes a trigger when the awaits of all its tasks together have come so far.

    :param at: which await, from 1 on.
    :param cancels: the trigger is cancelled, as Airflow does it; else whoever waits there has an error raised.
    """

    at: int
    cancels: bool = False
    awaits: int = 0
    trigger: asyncio.Task[Any] | None = None

    @property
    def struck(self) -> bool:
        return self.awaits >= self.at

    def strikes(self) -> bool:
        """Counts an await; whether an error is to be raised there."""
        self.awaits += 1
        if self.awaits != self.at:
            return False
        if self.cancels:
            assert self.trigger is not None
            self.trigger.cancel()
        return not self.cancels


class Endangered(Coroutine[Any, Any, Any]):
    """*work*, under *poison*."""

    def __init__(self, work: Coroutine[Any, Any, Any], poison: Poison) -> None:
        self._work = work
        self._poison = poison

    def send(self, value: Any) -> Any:
        return self._waiting_for(self._work.send(value))

    def throw(self, *error: Any) -> Any:
        return self._waiting_for(self._work.throw(*error))

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Any:
        raise NotImplementedError("a task steps it")

    def _waiting_for(self, what: Any) -> Any:
        if self._poison.strikes():
            return self._work.throw(PoisonError(f"at await {self._poison.at}"))
        return what


POISON: contextvars.ContextVar[Poison | None] = contextvars.ContextVar("POISON", default=None)


def under_poison(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
    """A task; all that it begins is under the same poison."""
    poison = POISON.get()
    return asyncio.Task(Endangered(work, poison) if poison else work, loop=loop, **more)


@pytest.fixture(autouse=True)
def quick(monkeypatch, airflow_says):
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0.001")
    monkeypatch.setattr(ownership, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr("airflow_raytpu.triggers.relay._PAUSE_S", 0.001)
    monkeypatch.setattr("airflow_raytpu.triggers.watching._DRAIN_S", 0.001)
    monkeypatch.setattr(XCom, "set", lambda *_, **__: None)
    airflow_says("deferred")


class Scripted(ScriptedBackend):
    """A job that is seen at work a few times and then done; its log stays open."""

    def __init__(self, looks: int = 3) -> None:
        busy = [running(at=time.time(), done=done, dashboard="http://d") for done in range(looks)]
        super().__init__([*busy, succeeded({"step": 3})])

    async def tail(self, request: RayRequest, offset: int = 0) -> AsyncIterator[LogLine]:
        yield LogLine(text="hello", offset=6)
        await asyncio.Event().wait()


async def deferred(place_with: Any, ti: TaskInstance, backend: ScriptedBackend) -> tuple[JaxTrainerOperator, Any]:
    """A task that has just been deferred, with its trigger."""
    place_with(backend)
    operator = JaxTrainerOperator(task_id="train", train_loop="json:dumps", cluster=CLUSTER)
    with pytest.raises(TaskDeferred) as caught:
        await operator.aexecute(context(ti))
    trigger = WatchTrigger(**caught.value.trigger.serialize()[1])
    trigger._task_instance = ti
    return operator, trigger


async def as_airflow_runs_it(trigger: BaseTrigger) -> list[Any]:
    try:
        return [event async for event in trigger.run()]
    finally:
        await trigger.cleanup()


def endangered(poison: Poison, trigger: BaseTrigger) -> asyncio.Task[Any]:
    """A task that runs *trigger* under *poison*."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(under_poison)
    token = POISON.set(poison)
    poison.trigger = loop.create_task(as_airflow_runs_it(trigger))
    POISON.reset(token)
    return poison.trigger


async def struck(poison: Poison, trigger: BaseTrigger) -> Any:
    """What became of *trigger* under *poison*: what its event says, or the error that ended it. It leaves no task."""
    before = asyncio.all_tasks()
    task = endangered(poison, trigger)
    done, _ = await asyncio.wait({task}, timeout=WITHIN_S)
    assert done, f"it hangs, struck at await {poison.at}"
    assert asyncio.all_tasks() <= before
    try:
        (event,) = task.result()
    except (PoisonError, asyncio.CancelledError) as error:
        return error
    return event.payload["verdict"]["value"] if "verdict" in event.payload else event.payload


def taken_over(operator: JaxTrainerOperator, ti: TaskInstance) -> Any:
    """What the worker returns that Airflow starts once the trigger has failed."""
    ExecutorSafeguard.tracker.set(operator)
    return operator.resume_execution("__fail__", {"error": "Trigger failure"}, context(ti))


async def test_wherever_it_breaks_it_ends_and_the_worker_takes_the_same_work_over(place_with) -> None:
    seen = set()
    for at in range(1, MOST):
        backend, ti = Scripted(), TaskInstance(run_id=f"run-{at}")
        operator, trigger = await deferred(place_with, ti, backend)
        poison = Poison(at)
        end = await struck(poison, trigger)
        if not poison.struck:
            break
        seen.add(type(end))
        if isinstance(end, PoisonError):
            end = await asyncio.to_thread(taken_over, operator, ti)
        assert end == {"step": 3}, at
        assert len({request.name for request in backend.requests}) == 1
        assert "delete" not in backend.verbs()
    assert seen == {PoisonError, dict}
    assert 10 < at < MOST


async def test_wherever_it_is_cancelled_it_ends_leaves_the_work_and_obeys_a_kill(place_with, airflow_says) -> None:
    for at in range(1, MOST):
        airflow_says("deferred")
        backend, ti = Scripted(), TaskInstance(run_id=f"run-{at}")
        _, trigger = await deferred(place_with, ti, backend)
        poison = Poison(at, cancels=True)
        end = await struck(poison, trigger)
        if not poison.struck:
            break
        assert isinstance(end, asyncio.CancelledError), at
        assert backend.verbs("stop", "delete") == []
        airflow_says("failed")
        await trigger.on_kill()
        assert backend.verbs("stop", "delete") == ["stop"]
    assert 10 < at < MOST


@pytest.mark.parametrize("cancels", [False, True], ids=["broken", "cancelled"])
async def test_a_wait_for_slices_ends_wherever_it_breaks_and_leaves_no_connection(cancels: bool, place_with) -> None:
    """Airflow fails the sensor then, and tries it again: it has no work that could go on without it."""
    wish = Wish(slice="v6e:4x4", count=1, cluster="shared", known=False, begun_at=time.time(), timeout_s=600.0)
    seen = set()
    for at in range(1, MOST):
        backend = ScriptedBackend(pictures=[[tpu_slice("busy")], [tpu_slice("busy")], [tpu_slice()]])
        place_with(backend)
        poison = Poison(at, cancels)
        end = await struck(poison, CapacityTrigger(asdict(wish), "raytpu_default", 0.001))
        if not poison.struck:
            break
        seen.add(type(end))
        assert backend.closed == 1
    assert end == {"granted": {"cluster": "shared", "slices": ["shared-0"]}}
    assert seen == {asyncio.CancelledError if cancels else PoisonError}


class OneForAll(Scripted):
    """What one triggerer shares between its triggers; each request has a script of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._each: dict[str, Scripted] = {}

    async def observe(self, request: RayRequest) -> Observation:
        return await self._each.setdefault(request.name, Scripted(looks=30)).observe(request)


async def test_its_neighbours_in_one_triggerer_do_not_notice(place_with) -> None:
    async def begun(run_id: str) -> WatchTrigger:
        _, trigger = await deferred(place_with, TaskInstance(run_id=run_id), backend)
        return trigger

    backend = OneForAll()
    neighbours = [asyncio.create_task(as_airflow_runs_it(await begun(f"well-{n}"))) for n in range(3)]
    errors = []
    for at in itertools.count(1):
        task = endangered(Poison(at), await begun(f"ill-{at}"))
        await asyncio.wait({task})
        errors.append(task.exception())
        if all(each.done() for each in neighbours):
            break
    for each in neighbours:
        (event,) = each.result()
        assert event.payload["verdict"]["value"] == {"step": 3}
    assert PoisonError in map(type, errors)
