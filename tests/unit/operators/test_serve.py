"""What the serving operators ask for."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_raytpu.model import application
from airflow_raytpu.model.errors import ClusterError, RequestError
from airflow_raytpu.model.observation import Observation
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.operators import RayServeDeleteOperator, RayServeDeployOperator
from airflow_raytpu.storage import objects
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, starting, succeeded


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0")


def deploy(**arguments):
    return RayServeDeployOperator(**{"task_id": "serve", "app": "json:loads", **arguments})


def asked(**arguments):
    operator = deploy(**arguments)
    return operator.build(operator.target())["replica"]


def test_a_slice_is_the_replicas_own_only_where_it_is_stated():
    assert asked(cluster="shared") is None
    assert asked(cluster="shared", slice="v6e-4x4") == "v6e:4x4"


@pytest.mark.parametrize("text", ["v6e:4x4*2", "v6e:2x4/4x4"])
def test_a_replica_takes_one_whole_slice(text):
    with pytest.raises(RequestError, match="one whole slice"):
        asked(cluster="shared", slice=text)


def test_without_a_cluster_the_slices_are_the_services():
    operator = deploy(slice="v6e-4x4*2", name="digits")
    assert (operator.target().slice, operator.target().cluster) == ("v6e:4x4*2", None)
    assert operator.build(operator.target())["replica"] is None


def test_a_service_has_a_name():
    with pytest.raises(RequestError, match="no name is given"):
        deploy(slice="v6e:2x2")
    operator = deploy(slice="v6e:2x2", name="{{ params.nobody }}")
    operator.name = "None"
    with pytest.raises(RequestError, match="names no application"):
        operator.build(operator.target())


def test_a_part_of_a_slice_is_no_service():
    with pytest.raises(RequestError, match="no cluster is made of parts"):
        deploy(slice="v6e:2x4/4x4", name="digits")


async def deferred(operator, **ti) -> RayRequest:
    with pytest.raises(TaskDeferred) as caught:
        await operator.aexecute(context(TaskInstance(task_id="serve", **ti)))
    return RayRequest.from_dict(caught.value.trigger.request)


async def test_every_run_rolls_out_on_the_same_service_and_is_a_rollout_of_its_own(place_with):
    place_with(ScriptedBackend([starting()]))
    one, other = [await deferred(deploy(slice="v6e:2x2", name="digits"), run_id=run) for run in ("a", "b")]
    assert one.name != other.name
    assert application.service(one).name == application.service(other).name
    assert not one.shared


class Fleeting(ScriptedBackend):
    """Does not answer the first looks."""

    async def observe(self, request):
        seen = await super().observe(request)
        self.observed = [*getattr(self, "observed", []), seen.reachable]
        return seen


async def test_a_success_that_was_left_by_a_lost_worker_is_looked_at_before_it_is_handed_over(place_with):
    place_with(ScriptedBackend([starting()]))
    operator = deploy(slice="v6e:2x2", name="digits")
    request = await deferred(operator)
    value = {"version": "v", "endpoint": "http://x"}
    objects.write_json(request.outbox("result"), Outcome(request=request.name, value=value).to_dict())
    backend = Fleeting([Observation.unreachable("no answer"), succeeded(value)])
    place_with(backend)
    assert await operator.aexecute(context(TaskInstance(task_id="serve"))) == value
    assert backend.observed == [False, True]


async def test_a_rollout_on_a_cluster_is_not_looked_at_again(place_with):
    place_with(ScriptedBackend([starting()]))
    operator = deploy(cluster="shared")
    request = await deferred(operator)
    objects.write_json(request.outbox("result"), Outcome(request=request.name, value={"version": "v"}).to_dict())
    backend = Fleeting([succeeded()])
    place_with(backend)
    await operator.aexecute(context(TaskInstance(task_id="serve")))
    assert not hasattr(backend, "observed")


async def test_what_is_deleted_is_the_service_of_that_name(place_with):
    backend = ScriptedBackend([starting()])
    place_with(backend)
    task = RayServeDeleteOperator(task_id="off", name="digits")
    name = await task.aexecute(context(TaskInstance(task_id="off")))
    assert backend.calls == [("delete", name)]
    assert name == application.service_called("airflow", "digits").name
    assert application.service_called("airflow", "digits").kind is Kind.SERVE
    assert backend.closed == 1


async def test_a_service_that_does_not_go_is_an_error_with_its_limit(place_with):
    class Sticky(ScriptedBackend):
        async def delete(self, request):
            await asyncio.Event().wait()

    backend = Sticky([starting()])
    place_with(backend)
    task = RayServeDeleteOperator(task_id="off", name="digits", within=timedelta(milliseconds=1))
    with pytest.raises(ClusterError, match="not gone within"):
        await task.aexecute(context(TaskInstance(task_id="off")))
    assert backend.closed == 1


async def test_no_name_deletes_nothing(place_with):
    backend = ScriptedBackend([starting()])
    place_with(backend)
    with pytest.raises(AirflowFailException, match="names no application"):
        await RayServeDeleteOperator(task_id="off", name="").aexecute(context(TaskInstance(task_id="off")))
    assert backend.calls == []
