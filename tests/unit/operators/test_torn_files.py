"""Each file of an outbox, cut off or emptied while its task is between two tries: the next try ends well, once."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

import airflow_raytpu
from airflow_raytpu.backends import outbox
from airflow_raytpu.model.errors import PathError
from airflow_raytpu.model.observation import Observation, Progress
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.operators import JaxTrainerOperator
from airflow_raytpu.storage import objects
from airflow_raytpu.triggers.watch import WatchTrigger
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, running, succeeded

VALUE = {"step": 3}
FILES = {
    "request": 1,
    "progress": 1,
    "result": 1,
    "submitted": 1,
    "told": 1,
    "beat": 1,
    "tail": 1,
    "owner": 2,  # whose it is cannot be known any more: it is ended, and begun anew
    "used": 2,  # to be used up was meant
}
"""What lies in an outbox, and the attempt that the next try carries out when that file is torn."""

TORN = ["", "{", '{"phase": "SUCC', "[]", "\x00\x00"]


class WithOutbox(ScriptedBackend):
    """Has each file of a job under way, and looks at them as every backend does."""

    async def ensure(self, request: RayRequest) -> bool:
        await outbox.note_submitted(request, "uid")
        now = time.time()
        told = Progress(request=request.name, phase="training", at=now, slice_at=now, first_at=now)
        objects.write_json(request.outbox("progress"), told.to_dict())
        return await super().ensure(request)

    async def observe(self, request: RayRequest) -> Observation:
        await outbox.read(request)
        return await super().observe(request)


@pytest.fixture(autouse=True)
def quick(monkeypatch, airflow_says):
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0")
    airflow_says("deferred")


def train() -> JaxTrainerOperator:
    return JaxTrainerOperator(task_id="train", train_loop="json:dumps", slice="v6e:4x4")


async def deferred(ti: TaskInstance) -> WatchTrigger:
    with pytest.raises(TaskDeferred) as caught:
        await train().aexecute(context(ti))
    trigger = WatchTrigger(**caught.value.trigger.serialize()[1])
    trigger._task_instance = ti
    return trigger


async def verdict_of(trigger: WatchTrigger) -> dict[str, Any]:
    (event,) = [event async for event in trigger.run()]
    return event.payload["verdict"]


@pytest.mark.parametrize("text", TORN)
@pytest.mark.parametrize("what", FILES)
async def test_the_next_try_ends_well_and_begins_nothing_twice(what: str, text: str, place_with) -> None:
    backend = WithOutbox([running(at=time.time())])
    place_with(backend)
    await deferred(TaskInstance(max_tries=1))
    first = backend.requests[0]
    objects.write_bytes(first.outbox(what), text.encode())

    ti = TaskInstance(max_tries=1)
    trigger = await deferred(ti)
    objects.write_bytes(first.outbox("tail"), text.encode())
    backend.sights = [running(at=time.time()), succeeded(VALUE)]
    verdict = await verdict_of(trigger)
    assert (verdict["phase"], verdict["value"]) == ("SUCCEEDED", VALUE)
    assert {request.identity.attempt for request in backend.requests} == {1, FILES[what]}
    # What was begun anew was ended first, and the end frees the cluster of the last one.
    stopped = [name for verb, name in backend.calls if verb == "stop"]
    assert stopped == list(dict.fromkeys([first.name] * (what == "owner") + [backend.requests[-1].name]))


@pytest.mark.parametrize("text", TORN)
@pytest.mark.parametrize("what", FILES)
async def test_under_a_trigger_it_makes_no_success_and_ends_nothing(what: str, text: str, place_with) -> None:
    backend, ti = WithOutbox([running(at=time.time())]), TaskInstance(max_tries=1)
    place_with(backend)
    trigger = await deferred(ti)
    objects.write_bytes(backend.requests[0].outbox(what), text.encode())
    backend.sights = [running(at=time.time()), succeeded(VALUE)]
    if what == "owner":
        # It cannot know whether it is in charge: it fails, and Airflow's next try sees to it.
        with pytest.raises(PathError, match="owner"):
            await verdict_of(trigger)
        assert backend.verbs("stop") == []
    else:
        assert (await verdict_of(trigger))["value"] == VALUE


def test_every_file_of_an_outbox_is_tried_here() -> None:
    named = set()
    for path in Path(airflow_raytpu.__file__).parent.rglob("*.py"):
        named |= set(re.findall(r'\boutbox\("([a-z]+)"\)|_mark\(\w+, "([a-z]+)"\)', path.read_text()))
    assert {name for pair in named for name in pair if name} == set(FILES)
