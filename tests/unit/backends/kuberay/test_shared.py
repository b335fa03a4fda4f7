"""A cluster that several tasks share: found, grown, kept as long as anybody asked for, given back if never ready."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_raytpu.backends.kuberay.backend import KubeRayBackend
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import ClusterState
from airflow_raytpu.model.request import Kind, RayRequest
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.unit.backends.kuberay.coming_up import come_up

EVERYBODYS = Identity(deployment="tests", dag_id="", task_id="team", run_id="")


@pytest.fixture
def one(request_of: Any) -> RayRequest:
    """What the first of them asks for."""
    made: RayRequest = request_of("cluster", Kind.CLUSTER, identity=EVERYBODYS, shared=True, ttl_s=300)
    return made


@pytest.fixture
def another(one: RayRequest) -> RayRequest:
    """What another task asks for."""
    return replace(one, storage="file:///elsewhere")


def ttl(k: FakeKubernetes, cluster: RayRequest) -> str:
    found = k.find("rayclusters", cluster.name)
    assert found is not None
    return str(found["metadata"]["annotations"]["airflow-raytpu/ttl-seconds"])


async def test_a_shared_cluster_is_found_grown_and_never_deleted(
    k: FakeKubernetes, backend: KubeRayBackend, one: RayRequest, another: RayRequest
) -> None:
    await backend.ensure(one)
    assert await backend.ensure(another)
    assert await backend.ensure(replace(one, slice="v6e:4x4*3", ttl_s=900))
    assert await backend.ensure(one)
    (found,) = k.items("rayclusters")
    counts = found["spec"]["workerGroupSpecs"][0]
    assert (counts["replicas"], counts["minReplicas"], counts["maxReplicas"]) == (3, 3, 3)
    assert ttl(k, one) == "900"
    with pytest.raises(RequestError, match="v6e:4x8"):
        await backend.ensure(replace(one, slice="v6e:4x8"))
    come_up(k, one.name)
    for user in (one, another):
        await backend.stop(user)
        await backend.delete(user)
    assert k.items("rayclusters")


async def test_the_longest_time_to_live_that_anybody_asked_for_holds(
    k: FakeKubernetes, backend: KubeRayBackend, one: RayRequest, another: RayRequest
) -> None:
    await backend.ensure(one)
    for asked, holds in ((600, "600"), (60, "600"), (900, "900")):
        assert await backend.ensure(replace(another, ttl_s=asked))
        assert ttl(k, one) == holds
    writes = k.count("patch", "rayclusters")
    assert await backend.ensure(replace(another, ttl_s=900))
    assert k.count("patch", "rayclusters") == writes


async def test_one_that_never_came_up_is_given_back_by_its_creator_alone(
    k: FakeKubernetes, backend: KubeRayBackend, one: RayRequest, another: RayRequest
) -> None:
    await backend.ensure(one)
    await backend.ensure(another)
    await backend.stop(another)
    assert k.items("rayclusters")
    await backend.stop(one)
    assert not k.items("rayclusters")
    # Whoever waits for it sees it gone, and whoever asks again has a new one, which is his.
    assert (await backend.observe(another)).cluster is ClusterState.ABSENT
    assert await backend.ensure(another)
    await backend.stop(one)
    assert k.items("rayclusters")
    await backend.stop(another)
    await backend.stop(another)
    assert not k.items("rayclusters")


async def test_one_that_was_ready_stays_though_its_hosts_are_gone_or_kueue_suspended_it(
    k: FakeKubernetes, backend: KubeRayBackend, one: RayRequest
) -> None:
    await backend.ensure(one)
    come_up(k, one.name)
    for pod in k.items("pods"):
        k.remove("pods", pod["metadata"]["name"])
    await backend.stop(one)
    ready_at = {"ready": "2026-01-01T00:00:00Z"}
    k.status("rayclusters", one.name, {"conditions": [], "state": "suspended", "stateTransitionTimes": ready_at})
    await backend.stop(one)
    assert k.items("rayclusters")


async def test_one_that_gets_ready_in_the_very_moment_stays(
    k: FakeKubernetes, backend: KubeRayBackend, one: RayRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await backend.ensure(one)
    delete = backend.api.delete

    async def a_moment_later(*arguments: Any) -> None:
        come_up(k, one.name)
        monkeypatch.setattr(backend.api, "delete", delete)
        await delete(*arguments)

    monkeypatch.setattr(backend.api, "delete", a_moment_later)
    await backend.stop(one)
    assert k.items("rayclusters")
