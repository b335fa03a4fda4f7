"""WatchTrigger: what it carries, what it fires, and when it stops remote work."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.serde import deserialize, serialize

from airflow_raytpu.backends.base import LogLine
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import BackendUnreachable
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.verdict import Phase, Verdict
from airflow_raytpu.storage import attempts, objects
from airflow_raytpu.triggers import ownership, stopping, watch
from airflow_raytpu.triggers.watch import _ENDING, WatchTrigger
from tests.doubles.airflow_side import TaskInstance
from tests.doubles.scripted import Lines, ScriptedBackend, ready, running, succeeded


@pytest.fixture
def request_(tmp_path):
    return RayRequest(
        identity=Identity(deployment="d", dag_id="digits", task_id="train", run_id="manual__1"),
        kind=Kind.TRAIN,
        slice="v6e:4x4",
        storage=f"file://{tmp_path}/storage/digits",
        limits=Deadlines().since(time.time()),
        cluster="shared",
        arguments={"train_loop": "m:f", "train_loop_config": {"steps": 3, "name": "ü"}},
    )


def trigger_of(request, ti=None):
    trigger = WatchTrigger(request.to_dict(), "raytpu_default")
    trigger._task_instance = ti
    return trigger


async def fired(trigger):
    return [event async for event in trigger.run()]


def test_it_survives_serialisation_as_plain_json(request_):
    path, arguments = WatchTrigger(request_.to_dict(), "conn", stated=False).serialize()
    assert path == "airflow_raytpu.triggers.watch.WatchTrigger", "it lies in databases of users"
    assert json.loads(json.dumps(arguments)) == arguments
    again = import_string(path)(**deserialize(serialize(arguments)))
    assert again.serialize() == (path, arguments)
    assert RayRequest.from_dict(again.request) == request_


async def test_it_fires_one_event_which_is_the_verdict(request_, place_with, monkeypatch):
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0")
    backend, ti = ScriptedBackend([running(at=time.time()), succeeded({"step": 3})]), TaskInstance()
    place_with(backend)
    attempts.take(request_, ti.id, "g")
    events = await fired(trigger_of(request_, ti))
    assert len(events) == 1
    payload = json.loads(json.dumps(events[0].payload))
    assert payload["request"] == request_.outbox("request")
    verdict = Verdict.from_dict(payload["verdict"])
    assert (verdict.phase, verdict.value) == (Phase.SUCCEEDED, {"step": 3})
    assert backend.closed == 1


async def test_a_connection_that_vanished_is_not_taken_for_simulated_slices(request_, place_with):
    backend = ScriptedBackend([succeeded()])
    place_with(backend, stated=False)
    with pytest.raises(Exception, match="was there when this task began"):
        await fired(trigger_of(request_))
    assert backend.calls == []


async def test_cleanup_stops_nothing_and_remembers_the_place_in_the_log(request_, place_with):
    backend = ScriptedBackend([succeeded()], lines=[LogLine(text="a", offset=2), LogLine(text="b", offset=4)])
    place_with(backend)
    ti = TaskInstance()
    attempts.take(request_, ti.id, "g")
    trigger = trigger_of(request_, ti)
    await fired(trigger)
    trigger._relay.offset = 2
    await trigger.cleanup()
    assert backend.verbs("stop") == []
    assert await trigger_of(request_, ti)._offset(request_) == 2
    assert await trigger_of(request_, TaskInstance())._offset(request_) == 0, "another try has a log of its own"


@pytest.mark.parametrize(
    "state", ["failed", "success", "skipped", "removed", None, "", "scheduled", "queued", "running"]
)
async def test_a_user_kill_stops_the_work_and_uses_the_attempt_up(state, request_, place_with, airflow_says):
    backend, ti = ScriptedBackend([running(at=time.time())]), TaskInstance()
    place_with(backend)
    airflow_says(state)
    attempts.take(request_, ti.id, "g")
    await trigger_of(request_, ti).on_kill()
    assert backend.verbs("stop") == ["stop"]
    assert objects.read_json(request_.outbox("used"))["phase"] == "KILLED"


async def test_a_kill_that_airflow_cancels_again_and_again_stops_the_work_all_the_same(
    request_, place_with, airflow_says, monkeypatch
):
    backend, ti, answered = ScriptedBackend([running(at=time.time())]), TaskInstance(), asyncio.Event()
    place_with(backend)
    attempts.take(request_, ti.id, "g")

    async def slow_answer(ti):
        await answered.wait()
        return "failed"

    monkeypatch.setattr(ownership, "task_state", slow_answer)
    killing = asyncio.ensure_future(trigger_of(request_, ti).on_kill())
    for _ in range(3):
        await asyncio.sleep(0)
        killing.cancel()
    await asyncio.wait({killing})
    assert killing.cancelled()
    assert backend.verbs("stop") == []
    answered.set()
    await asyncio.gather(*_ENDING)
    assert backend.verbs("stop") == ["stop"]
    assert set() == _ENDING


async def test_a_kill_in_the_middle_of_trouble_is_tried_again_until_it_stops_the_work(
    request_, place_with, monkeypatch
):
    monkeypatch.setattr(stopping, "_LONGEST_PAUSE_S", 0)
    says = [RuntimeError("502"), "failed"]

    async def task_state(ti):
        said = says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(ownership, "task_state", task_state)
    backend, ti = ScriptedBackend(stops=[BackendUnreachable("503"), OSError("cut"), None]), TaskInstance()
    place_with(backend)
    attempts.take(request_, ti.id, "g")
    await trigger_of(request_, ti).on_kill()
    assert says == []
    assert backend.verbs("stop") == ["stop"] * 3
    assert backend.closed == 1


async def test_a_backend_is_closed_though_airflow_cancels_again_and_again(request_, place_with, monkeypatch):
    class SlowToClose(ScriptedBackend):
        async def close(self):
            for _ in range(9):
                await asyncio.sleep(0)
            await super().close()

    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0.001")
    backend, ti = SlowToClose([running(at=time.time())]), TaskInstance()
    place_with(backend)
    attempts.take(request_, ti.id, "g")
    running_ = asyncio.ensure_future(fired(trigger_of(request_, ti)))
    async with asyncio.timeout(10):
        while len(backend.verbs("observe")) < 3:
            await asyncio.sleep(0.001)
    while not running_.done():
        running_.cancel()
        await asyncio.sleep(0)
    assert running_.cancelled()
    async with asyncio.timeout(10):
        while _ENDING:
            await asyncio.sleep(0)
    assert backend.closed == 1


async def test_storage_that_does_not_answer_at_first_ends_no_trigger(request_, place_with, monkeypatch):
    monkeypatch.setattr(watch, "_ASK_AGAIN_S", 0)
    backend, ti = ScriptedBackend([succeeded({"step": 3})]), TaskInstance()
    place_with(backend)
    answers = [BackendUnreachable("503"), BackendUnreachable("503"), True]

    def is_owned_by(request, owner):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def no_record(uri):
        raise BackendUnreachable("503")

    monkeypatch.setattr(attempts, "is_owned_by", is_owned_by)
    monkeypatch.setattr(objects, "read_record", no_record)
    (event,) = await fired(trigger_of(request_, ti))
    assert event.payload["verdict"]["value"] == {"step": 3}
    over = replace(request_, limits=replace(request_.limits, asked_at=0.0))
    answers = [BackendUnreachable("503")] * 2
    with pytest.raises(BackendUnreachable):
        await fired(trigger_of(over, ti))
    assert len(answers) == 1, "it is not asked for ever"


async def idle(trigger, looks=50, until=lambda: True):
    """Runs the trigger for a while, and until something has happened; it must still be waiting, without an event."""
    running_ = asyncio.ensure_future(fired(trigger))
    async with asyncio.timeout(30):
        while looks > 0 or not until():
            looks -= 1
            await asyncio.sleep(0.001)
    assert not running_.done()
    running_.cancel()
    await asyncio.wait({running_})


async def test_work_of_a_task_that_was_cleared_is_stopped_though_airflow_ends_no_trigger(
    request_, place_with, airflow_says, monkeypatch
):
    monkeypatch.setattr(ownership, "LOOK_EVERY_S", 0)
    monkeypatch.setattr(ownership, "_CONFIRM_S", 0)
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0.001")
    backend, ti = ScriptedBackend([running(at=time.time())]), TaskInstance()
    place_with(backend)
    attempts.take(request_, ti.id, "g")
    airflow_says("deferred")
    await idle(trigger_of(request_, ti))
    assert backend.verbs("stop") == []
    airflow_says(None)
    await idle(trigger_of(request_, ti), until=lambda: objects.read_json(request_.outbox("used")))
    assert backend.verbs("stop") == ["stop"]
    assert objects.read_json(request_.outbox("used"))["phase"] == "KILLED"


async def test_a_trigger_that_airflow_forgot_to_end_touches_nothing(request_, place_with):
    backend = ScriptedBackend([running(at=time.time())])
    place_with(backend)
    attempts.take(request_, "the try before", "g")
    await idle(trigger_of(request_, TaskInstance()), looks=5)
    assert backend.calls == []


async def test_silence_of_airflows_server_is_not_taken_for_a_kill(monkeypatch):
    monkeypatch.setattr(ownership, "LOOK_EVERY_S", 0)
    monkeypatch.setattr(ownership, "_CONFIRM_S", 0)
    answers = [RuntimeError("502"), None, RuntimeError("502"), "deferred", None, "deferred", None, None]
    asked = []

    async def task_state(ti):
        asked.append(answers[len(asked)])
        if isinstance(asked[-1], Exception):
            raise asked[-1]
        return asked[-1]

    monkeypatch.setattr(ownership, "task_state", task_state)
    await ownership.until_taken_away(TaskInstance(), Lines())
    assert len(asked) == len(answers)


async def test_a_triggerer_that_lost_its_trigger_stops_nothing(request_, place_with, airflow_says):
    backend, ti = ScriptedBackend([running(at=time.time())]), TaskInstance()
    place_with(backend)
    airflow_says("deferred")
    attempts.take(request_, ti.id, "g")
    await trigger_of(request_, ti).on_kill()
    assert backend.verbs("stop") == []
    assert not objects.exists(request_.outbox("used"))


@pytest.mark.parametrize("state", ["failed", None])
async def test_work_that_a_later_try_has_taken_over_is_left_alone(state, request_, place_with, airflow_says):
    backend = ScriptedBackend([running(at=time.time())])
    place_with(backend)
    airflow_says(state)
    attempts.take(request_, TaskInstance().id, "g")
    await trigger_of(request_, TaskInstance()).on_kill()
    assert backend.verbs("stop") == []


async def test_a_cluster_that_another_triggerer_saw_ready_is_left_alone(request_, place_with, airflow_says):
    cluster = RayRequest.from_dict({**request_.to_dict(), "kind": "cluster", "cluster": None})
    backend, ti = ScriptedBackend([ready()]), TaskInstance()
    place_with(backend)
    attempts.take(cluster, ti.id, "g")
    airflow_says("scheduled")
    await trigger_of(cluster, ti).on_kill()
    attempts.release(cluster, "g")
    airflow_says("success")
    await trigger_of(cluster, ti).on_kill()
    assert backend.verbs("stop") == []


@pytest.mark.parametrize(("map_index", "key"), [(-1, "train"), (3, "train_3")])
@pytest.mark.parametrize(("said", "state"), [("failed", "failed"), (None, ownership.TO_BE_DONE_AGAIN)])
async def test_the_state_is_asked_for_as_airflow_answers(map_index, key, said, state, monkeypatch):
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    def states(**asked):
        assert asked == {"dag_id": "digits", "task_ids": ["train"], "run_ids": ["manual__1"], "map_index": map_index}
        return {"manual__1": {key: said}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states))
    assert await ownership.task_state(TaskInstance(map_index=map_index)) == state
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_: {}))
    assert await ownership.task_state(TaskInstance()) is None
