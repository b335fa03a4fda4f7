"""Giving a cluster back."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.operators import RayTpuClusterDeleteOperator, RayTpuClusterOperator
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, starting


@pytest.fixture
def pair():
    with DAG("digits", schedule=None):
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
        return cluster, cluster.teardown()


async def begin(cluster, **ti):
    with pytest.raises(TaskDeferred):
        await cluster.aexecute(context(TaskInstance(task_id="cluster", **ti)))


async def test_every_attempt_is_deleted_though_the_setup_returned_nothing(pair, place_with):
    backend = ScriptedBackend([starting()])
    place_with(backend)
    cluster, last = pair
    await begin(cluster)
    await begin(cluster, max_tries=1)
    backend.calls.clear()
    gone = await last.aexecute(context(TaskInstance(task_id="cluster_teardown")))
    assert backend.calls == [("delete", name) for name in gone]
    assert gone == [request.name for request in backend.requests]
    assert len(gone) == 2


async def test_only_the_cluster_of_its_own_run_and_index_is_deleted(pair, place_with):
    backend = ScriptedBackend([starting()])
    place_with(backend)
    cluster, last = pair
    await begin(cluster, run_id="other")
    await begin(cluster, map_index=2)
    assert await last.aexecute(context(TaskInstance(task_id="cluster_teardown"))) == []
    assert len(await last.aexecute(context(TaskInstance(task_id="cluster_teardown", map_index=2)))) == 1


async def test_a_cluster_that_does_not_go_is_an_error_with_its_limit(pair, place_with):
    import asyncio
    from datetime import timedelta

    class Sticky(ScriptedBackend):
        async def delete(self, request):
            await asyncio.Event().wait()

    backend = Sticky([starting()])
    place_with(backend)
    cluster, last = pair
    await begin(cluster)
    last.within = timedelta(milliseconds=1)
    with pytest.raises(Exception, match="not gone within"):
        await last.aexecute(context(TaskInstance(task_id="cluster_teardown")))
    assert backend.closed == 2


def test_it_takes_storage_and_connection_from_its_cluster():
    with DAG("digits", schedule=None):
        cluster = RayTpuClusterOperator(task_id="c", slice="v6e:4x4", storage_path="gs://b/x", conn_id="prod")
        last = RayTpuClusterDeleteOperator(task_id="d", cluster=cluster)
    assert (last.cluster_task_id, last.storage_path, last.conn_id) == ("c", "gs://b/x", "prod")


@pytest.mark.parametrize(("tpu_slice", "count"), [("v6e:4x4", 0), ("v6e:4x4", 2), ("v6e:4x4*2", 3), ("v6e:4x4", -1)])
def test_more_idle_slices_than_a_cluster_has_are_refused(tpu_slice, count):
    with DAG("digits", schedule=None), pytest.raises(RequestError, match="min_idle_slices"):
        RayTpuClusterOperator(task_id="c", slice=tpu_slice, min_idle_slices=count)


async def test_idle_slices_are_part_of_the_request(place_with):
    backend = ScriptedBackend([starting()])
    place_with(backend)
    with DAG("digits", schedule=None):
        templated = RayTpuClusterOperator(task_id="cluster", slice="{{ params.slice }}", min_idle_slices=2)
    templated.slice = "v6e:4x4*2"
    await begin(templated)
    assert backend.requests[0].arguments == {"min_idle_slices": 2}
    templated.slice = "v6e:4x4"
    with pytest.raises(AirflowFailException, match="min_idle_slices is 2 of a cluster with 1 slice"):
        await templated.aexecute(context(TaskInstance(task_id="cluster")))


@pytest.mark.parametrize("rendered", [None, "", " ", "None"])
async def test_a_name_that_renders_to_nothing_is_no_cluster_of_the_runs_own(rendered, place_with):
    backend = ScriptedBackend([starting()])
    place_with(backend)
    with DAG("digits", schedule=None):
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4", name="{{ params.team }}")
    cluster.name = rendered
    with pytest.raises(AirflowFailException, match="names no cluster"):
        await cluster.aexecute(context(TaskInstance(task_id="cluster")))
    assert backend.requests == []


@pytest.mark.parametrize("name", ["", "None"])
def test_a_name_that_is_none_is_refused_when_the_dag_is_parsed(name):
    with DAG("digits", schedule=None), pytest.raises(RequestError, match="names no cluster"):
        RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4", name=name)


def test_slices_that_the_autoscaler_gave_back_are_not_waited_for():
    """Only a job's demand brings one back, and a task that waits for idle slices makes none."""
    scaled = {"autoscaling": True, "min_slices": 1}
    with DAG("digits", schedule=None):
        with pytest.raises(RequestError, match=r"min_idle_slices is 2, and min_slices(?s:.)*Set min_slices to 2"):
            RayTpuClusterOperator(task_id="c", slice="v6e:4x4*2", name="team", min_idle_slices=2, kuberay=scaled)
        RayTpuClusterOperator(task_id="own", slice="v6e:4x4*2", min_idle_slices=2, kuberay=scaled)
        RayTpuClusterOperator(task_id="enough", slice="v6e:4x4*2", name="team", min_idle_slices=1, kuberay=scaled)
