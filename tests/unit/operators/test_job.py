"""What a job's author writes, and what is asked for."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from airflow_raytpu.model.errors import CodeError, RequestError, SliceShapeError
from airflow_raytpu.model.policies import RetryBudget
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.verdict import judge
from airflow_raytpu.operators import RayTpuClusterOperator, RayTpuJobOperator
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, running, succeeded


def job(**more):
    return RayTpuJobOperator(**{"task_id": "job", "run": "json:dumps", "slice": "v6e:4x4", **more})


async def ask(operator, place_with):
    """The request that it makes."""
    backend = ScriptedBackend([running(at=time.time())])
    place_with(backend)
    with pytest.raises(TaskDeferred) as caught:
        await operator.aexecute(context(TaskInstance(task_id="job")))
    return backend.requests[0], caught.value


async def test_a_function_is_asked_for_with_json_arguments(place_with):
    operator = job(
        op_args=[1, "$(id)"],
        op_kwargs={"rate": 1e-5},
        per_host=True,
        env={"A": 1},
        retry_budget=RetryBudget(failures=1, evictions=3),
    )
    request, _ = await ask(operator, place_with)
    assert (request.kind, request.slice) == (Kind.JOB, "v6e:4x4")
    assert dict(request.arguments) == {
        "how": "function",
        "entry": "json:dumps",
        "args": [1, "$(id)"],
        "kwargs": {"rate": 1e-5},
        "per_host": True,
        "reserve": True,
        "env": {"A": "1"},
        "failures": 1,
        "evictions": 3,
    }
    assert RayRequest.from_dict(json.loads(json.dumps(request.to_dict()))) == request


async def test_a_module_is_asked_for_with_words(place_with):
    request, _ = await ask(job(run="json.tool", op_args=["--indent", 2, "a b; rm"], reserve=False), place_with)
    assert request.arguments["how"] == "module"
    assert request.arguments["args"] == ["--indent", "2", "a b; rm"]
    assert not request.arguments["reserve"]


async def test_the_tasks_value_holds_the_functions(place_with):
    operator = job()
    request, _ = await ask(operator, place_with)
    value = {"value": [1, 2], "chip_hours": 0.5, "evictions": 1, "failures": 0}
    verdict = judge(succeeded(value), request.limits, time.time())
    event = {"request": request.outbox("request"), "verdict": verdict.to_dict(), "links": {}}
    assert operator.finish(context(TaskInstance(task_id="job")), event) == value


def test_it_survives_serialisation_and_mapping():
    with DAG("jobs", schedule=None) as dag:
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
        RayTpuJobOperator.partial(task_id="sweep", run="json:dumps", cluster=cluster.output).expand(
            op_kwargs=[{"obj": 1}, {"obj": 2}]
        )
        job(cluster=cluster, slice=None, op_args=["{{ ds }}"])
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert again.get_task("sweep").upstream_task_ids == {"cluster"}
    assert again.get_task("job").upstream_task_ids == {"cluster"}


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"run": "json:dmups"}, CodeError, "^run .*defines no dmups"),
        ({"run": "tools/nothing.py"}, CodeError, "there is no such file"),
        ({"run": "json.toool"}, CodeError, r"Nearest: json\.tool"),
        ({"modules": ["jsn"]}, CodeError, "^modules jsn: there is no module jsn"),
        ({"slice": "v6e:4x5"}, SliceShapeError, "no topology 4x5"),
        ({"slice": None}, RequestError, "Neither cluster nor slice"),
        ({"per_host": True, "reserve": False}, RequestError, "reserve=False reserves none"),
        (
            {"run": "json.tool", "op_kwargs": {"indent": 2}},
            RequestError,
            r"A module takes no op_kwargs: indent\.\n.*op_args=",
        ),
        ({"op_args": "--indent 2"}, RequestError, "op_args is one text"),
    ],
)
def test_a_literal_that_cannot_work_is_refused_at_once(more, error, message):
    with DAG("wrong", schedule=None), pytest.raises(error, match=message):
        job(**more)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"op_args": [timedelta(1)]}, "are not JSON: "),
        ({"op_kwargs": {"x": float("nan")}}, "are not JSON: "),
        ({"run": "json.tool", "op_args": [None]}, "op_args holds None, a NoneType."),
        ({"run": "json.tool", "op_args": ["a\0b"]}, "with a NUL in it"),
        ({"env": {"X": True}}, "env['X'] holds True, a bool."),
        ({"op_args": ["x" * 1_000_001]}, "1,000,000 fit."),
    ],
)
async def test_a_rendered_value_that_cannot_work_fails_for_good(more, message, place_with):
    backend = ScriptedBackend([running()])
    place_with(backend)
    with pytest.raises(AirflowFailException) as caught:
        await job(**more).aexecute(context(TaskInstance(task_id="job")))
    assert message in str(caught.value)
    assert backend.calls == []


@pytest.mark.parametrize("rendered", [None, "", "None", {}])
async def test_a_cluster_that_renders_to_nothing_is_no_cluster_of_its_own(rendered, place_with):
    backend = ScriptedBackend([running(at=time.time())])
    place_with(backend)
    operator = job(cluster="{{ params.cluster }}")
    operator.cluster = rendered
    with pytest.raises(AirflowFailException, match="which is no cluster"):
        await operator.aexecute(context(TaskInstance(task_id="job")))
    assert backend.requests == []
