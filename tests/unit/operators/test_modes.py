"""Deferred or watched from the worker: the author sees no difference."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import RayTpuError
from airflow_raytpu.operators import JaxTrainerOperator, RayTpuClusterOperator, RayTpuJobOperator
from airflow_raytpu.triggers.watch import WatchTrigger
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, failed, ready, running, starting, succeeded

VALUE = {"step": 3, "checkpoint": "gs://b/c/3", "evictions": 1, "failures": 0, "causes": ["evictions 1: host 3"]}
FACTS = {"dashboard": "http://d:8265", "address": "a:1", "endpoint": "http://e", "slices": []}


def train(**more: Any) -> JaxTrainerOperator:
    return JaxTrainerOperator(task_id="train", train_loop="json:dumps", **{"slice": "v6e:4x4", **more})


def job(**more: Any) -> RayTpuJobOperator:
    return RayTpuJobOperator(task_id="train", run="json:dumps", **{"slice": "v6e:4x4", **more})


def cluster(**more: Any) -> RayTpuClusterOperator:
    return RayTpuClusterOperator(task_id="train", slice="v6e:4x4", **more)


async def done(operator: Any, sights: list[Any], place_with: Any, monkeypatch: Any) -> dict[str, Any]:
    """All that shows of one try: what is returned or raised, what is published, and what was asked of the backend."""
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0")
    backend, ti = ScriptedBackend(sights), TaskInstance(run_id=f"run-{operator.deferrable}")
    place_with(backend)
    shown: dict[str, Any] = {}
    try:
        try:
            shown["returned"] = await operator.aexecute(context(ti))
        except TaskDeferred as deferred:
            path, arguments = deferred.trigger.serialize()
            assert path.endswith("WatchTrigger")
            (event,) = [each async for each in WatchTrigger(**json.loads(json.dumps(arguments))).run()]
            event = json.loads(json.dumps(event.payload))
            shown["returned"] = operator.finish(context(ti), event=event)
    except RayTpuError as error:
        shown["raised"] = (type(error), str(error))
    request = backend.requests[0].to_dict()
    unlike = ("identity", "name", "storage", "limits")
    return {
        **shown,
        "links": dict(operator.known_links),
        "stopped": backend.verbs("stop", "delete"),
        "asked": {name: value for name, value in request.items() if name not in unlike},
        "waits": [request["limits"][f"{name}_s"] for name in ("slice_wait", "start", "stall", "total")],
    }


@pytest.mark.parametrize("make", [train, job, cluster])
@pytest.mark.parametrize(
    "end",
    [
        [succeeded(VALUE)],
        [failed(traceback="digits/train.py:58: ValueError: x")],
        [failed(code="RT203", cause="No whole slice within 2 h.")],
    ],
)
async def test_what_is_asked_returned_and_published_is_the_same(make, end, place_with, monkeypatch) -> None:
    if make is cluster:
        end = [ready(**FACTS)] if end[0].outcome.succeeded else end
    begun = [starting(), running(at=time.time(), **FACTS)] if make is not cluster else [starting(), starting()]
    more = {"deadlines": Deadlines(total=timedelta(hours=3)), "ttl": timedelta(minutes=9)}
    one, other = [
        await done(make(deferrable=deferrable, **more), [*begun, *end], place_with, monkeypatch)
        for deferrable in (True, False)
    ]
    if make is cluster and "returned" in one:
        for each in (one, other):
            for unlike in ("cluster", "request"):
                each["returned"].pop(unlike)
    assert one == other
    assert ("raised" in one) == (end[0].outcome is not None and not end[0].outcome.succeeded)
