"""Every way to an attempt with every end of it: made, adopted, ended before; deferred, or watched from the worker."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTerminated, TaskDeferred

from airflow_raytpu.model.errors import LostError, PathError, PlaceError, RayTpuError, UserCodeError, WorkError
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.policies import RetryBudget
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.operators import JaxTrainerOperator
from airflow_raytpu.storage import attempts, objects
from airflow_raytpu.triggers.watch import WatchTrigger
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, failed, running, succeeded

VALUE = {"step": 3, "checkpoint": "gs://b/c/3"}
WAYS = ["made", "adopted", "adopted twice"]
PHASES = {None: "SUCCEEDED", UserCodeError: "FAILED", LostError: "LOST"}
GONE = Observation(cluster=ClusterState.ABSENT, job=JobState.ABSENT)


def kinds(root: type[RayTpuError]) -> list[type[RayTpuError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in kinds(child))]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch, airflow_says):
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0.001")
    airflow_says("deferred")


def busy() -> Observation:
    return running(at=time.time(), dashboard="http://d")


def train(*, deferrable: bool) -> JaxTrainerOperator:
    return JaxTrainerOperator(
        task_id="train",
        train_loop="json:dumps",
        slice="v6e:4x4",
        retry_budget=RetryBudget(evictions=0),
        deferrable=deferrable,
    )


def trigger_of(deferred: TaskDeferred, ti: TaskInstance) -> WatchTrigger:
    """The trigger as it comes out of Airflow's database."""
    trigger = WatchTrigger(**json.loads(json.dumps(deferred.trigger.serialize()[1])))
    trigger._task_instance = ti
    return trigger


async def tried(operator: JaxTrainerOperator, ti: TaskInstance) -> Any:
    """One try from its beginning to its end, through the trigger where it defers."""
    try:
        return await operator.aexecute(context(ti))
    except TaskDeferred as deferred:
        (event,) = [event async for event in trigger_of(deferred, ti).run()]
        payload = json.loads(json.dumps(event.payload))
    return await asyncio.to_thread(resumed, operator, ti, payload)


def resumed(operator: JaxTrainerOperator, ti: TaskInstance, event: Any) -> Any:
    ExecutorSafeguard.tracker.set(operator)
    return operator.resume_execution("finish", {"event": event}, context(ti))


async def earlier_tries(way: str, backend: ScriptedBackend) -> None:
    """Tries before this one, whose workers were lost after they had submitted."""
    for _ in range(WAYS.index(way)):
        looks = len(backend.verbs("observe"))
        before = asyncio.ensure_future(train(deferrable=False).aexecute(context(TaskInstance(max_tries=2))))
        while len(backend.verbs("observe")) == looks:
            await asyncio.sleep(0.001)
        before.cancel()
        await asyncio.wait({before})


def tell(request: RayRequest, **outcome: Any) -> None:
    objects.write_json(request.outbox("result"), Outcome(request=request.name, **outcome).to_dict())


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "worker"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("end", "error"),
    [
        pytest.param([succeeded(VALUE)], None, id="success"),
        pytest.param([failed()], UserCodeError, id="failure"),
        pytest.param([GONE], LostError, id="loss"),
    ],
)
@pytest.mark.parametrize("looks", [0, 2], ids=["over at the first look", "later"])
async def test_each_end_is_the_same_whatever_the_way_to_it(
    way: str, deferrable: bool, end: list[Observation], error: type[Exception] | None, looks: int, place_with
) -> None:
    backend = ScriptedBackend([busy()])
    place_with(backend)
    await earlier_tries(way, backend)
    backend.sights = [*[busy() for _ in range(looks)], *end]
    ti, operator = TaskInstance(max_tries=2), train(deferrable=deferrable)
    if error is None:
        assert await tried(operator, ti) == VALUE
    else:
        with pytest.raises(error):
            await tried(operator, ti)
    assert len({request.name for request in backend.requests}) == 1
    assert backend.verbs("stop", "delete") == ["stop"]
    assert objects.read_json(backend.requests[0].outbox("used"))["phase"] == PHASES[error]


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "worker"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_kill_ends_the_work_whatever_the_way_to_it(
    way: str, deferrable: bool, place_with, airflow_says
) -> None:
    backend, ti, operator = ScriptedBackend([busy()]), TaskInstance(max_tries=2), train(deferrable=deferrable)
    place_with(backend)
    await earlier_tries(way, backend)
    backend.calls.clear()
    if deferrable:
        with pytest.raises(TaskDeferred) as deferred:
            await operator.aexecute(context(ti))
        airflow_says("failed")
        await trigger_of(deferred.value, ti).on_kill()
    else:
        working = asyncio.ensure_future(operator.aexecute(context(ti)))
        while not backend.verbs("observe"):
            await asyncio.sleep(0.001)
        airflow_says("failed")
        operator.on_kill()
        with pytest.raises(AirflowTaskTerminated):
            await working
    assert backend.verbs("stop", "delete") == ["stop"]
    assert objects.read_json(backend.requests[0].outbox("used"))["phase"] == "KILLED"


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "worker"])
async def test_what_ended_while_nobody_watched_is_handed_over_or_redone(deferrable: bool, place_with) -> None:
    backend = ScriptedBackend([busy()])
    place_with(backend)
    await earlier_tries("adopted", backend)
    tell(backend.requests[0], code="RT301", cause="it raised")
    backend.sights = [busy(), succeeded(VALUE)]
    assert await tried(train(deferrable=deferrable), TaskInstance(max_tries=2)) == VALUE
    assert sorted({request.identity.attempt for request in backend.requests}) == [1, 2]
    calls = list(backend.calls)
    tell(backend.requests[-1], value=VALUE)
    # The worker died before Airflow stored what it returned.
    assert await tried(train(deferrable=deferrable), TaskInstance(max_tries=2)) == VALUE
    assert backend.calls == calls


async def test_an_event_that_cannot_be_read_is_no_end_of_the_work(place_with) -> None:
    """The retry watches the same attempt on, from its beginning and not from the event."""
    backend, operator = ScriptedBackend([busy(), succeeded(VALUE)]), train(deferrable=True)
    place_with(backend)
    ti = TaskInstance(max_tries=2)
    with pytest.raises(TaskDeferred) as deferred:
        await operator.aexecute(context(ti))
    (event,) = [event async for event in trigger_of(deferred.value, ti).run()]
    objects.write_bytes(backend.requests[0].outbox("request"), b"{")
    with pytest.raises(PathError, match="request"):
        await asyncio.to_thread(resumed, operator, ti, event.payload)
    assert objects.read_json(backend.requests[0].outbox("used")) is None
    assert await tried(train(deferrable=True), TaskInstance(max_tries=2)) == VALUE
    assert {request.name for request in backend.requests} == {backend.requests[0].name}
    assert attempts.load(backend.requests[0].outbox("request")).name == backend.requests[0].name


async def test_an_event_of_an_earlier_attempt_says_nothing_of_a_later_one(place_with) -> None:
    """It ends the attempt that it speaks of, once more, and the next try goes on with the later one."""
    backend, operator = ScriptedBackend([failed()]), train(deferrable=True)
    place_with(backend)
    first = TaskInstance(max_tries=2)
    backend.sights = [busy(), failed()]
    with pytest.raises(TaskDeferred) as deferred:
        await operator.aexecute(context(first))
    (event,) = [event async for event in trigger_of(deferred.value, first).run()]
    with pytest.raises(UserCodeError):
        await asyncio.to_thread(resumed, operator, first, event.payload)
    backend.sights = [busy(), succeeded(VALUE)]
    second = TaskInstance(max_tries=2)
    with pytest.raises(TaskDeferred) as later:
        await operator.aexecute(context(second))
    with pytest.raises(UserCodeError):
        await asyncio.to_thread(resumed, operator, second, event.payload)
    now = RayRequest.from_dict(later.value.trigger.request)
    assert now.identity.attempt == 2
    assert objects.read_json(now.outbox("used")) is None
    assert attempts.is_owned_by(now, second.id)
    assert await tried(train(deferrable=True), TaskInstance(max_tries=2)) == VALUE
    assert backend.requests[-1] == now


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "worker"])
@pytest.mark.parametrize("code", sorted(kind.code for root in (PlaceError, WorkError) for kind in kinds(root)))
async def test_every_failure_of_the_work_or_the_place_is_left_to_airflows_retries(
    code: str, deferrable: bool, place_with
) -> None:
    """Airflow tries again what is raised, unless it is its own word for a failure for good."""
    place_with(ScriptedBackend([busy(), failed("it failed", code=code)]))
    with pytest.raises(RayTpuError) as caught:
        await tried(train(deferrable=deferrable), TaskInstance(max_tries=2))
    assert caught.value.code == code
    assert not isinstance(caught.value, AirflowFailException)


@pytest.mark.parametrize("said", ["Trigger timeout", "Trigger failure"])
async def test_whatever_ends_the_wait_in_the_triggerer_the_work_goes_on_and_is_seen_to_its_end(
    said: str, place_with
) -> None:
    """Also a timeout of Airflow's that comes early, as its server's clock is ahead of the worker's."""
    backend, operator = ScriptedBackend([busy()]), train(deferrable=True)
    place_with(backend)
    ti = TaskInstance(max_tries=2)
    with pytest.raises(TaskDeferred):
        await operator.aexecute(context(ti))
    backend.sights = [busy(), busy(), succeeded(VALUE)]

    def resumed_by_airflow() -> Any:
        ExecutorSafeguard.tracker.set(operator)
        return operator.resume_execution("__fail__", {"error": said}, context(ti))

    assert await asyncio.to_thread(resumed_by_airflow) == VALUE
    assert {request.identity.attempt for request in backend.requests} == {1}
