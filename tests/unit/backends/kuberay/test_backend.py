"""The backend against an API server: one object a request, by its owner only, and nothing believed too early."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from airflow_raytpu.backends.kuberay.api import Pace
from airflow_raytpu.backends.kuberay.backend import KubeRayBackend
from airflow_raytpu.backends.kuberay.reach import Reach, Way
from airflow_raytpu.backends.rayslices import OWNER
from airflow_raytpu.model.errors import ForbiddenError, ForeignObjectError, LostError, NotInstalledError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import ClusterState, JobState
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.model.slices import SliceCondition
from airflow_raytpu.model.verdict import Phase, judge
from airflow_raytpu.storage import objects
from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.doubles.ray_dashboard import RayDashboard
from tests.unit.backends.kuberay.coming_up import come_up, open_, start_child


async def test_a_job_of_its_own_is_one_rayjob_whoever_asks(
    k: FakeKubernetes, backend: KubeRayBackend, request_of: Any
) -> None:
    job = request_of()
    others = [open_(k) for _ in range(4)]
    await asyncio.gather(*(other.ensure(job) for other in others), return_exceptions=False)
    assert await backend.ensure(job)
    (found,) = k.items("rayjobs")
    assert found["metadata"]["name"] == found["spec"]["jobId"] == job.name
    assert found["spec"]["metadata"] == {OWNER: job.identity.owner()}
    assert objects.read_json(job.outbox("request")) == job.to_dict()
    for other in others:
        assert await other.ensure(job)
        await other.close()


async def test_a_name_that_is_another_owners_is_left_alone(
    k: FakeKubernetes, backend: KubeRayBackend, request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = request_of()
    assert await backend.ensure(job)
    name = job.name
    monkeypatch.setattr(Identity, "remote_name", lambda self, limit: name)
    thief = replace(job, identity=replace(job.identity, deployment="another"))
    for act in (backend.ensure, backend.stop, backend.delete):
        with pytest.raises(ForeignObjectError, match="another"):
            await act(thief)
    assert k.find("rayjobs", name)


async def test_a_job_that_was_accepted_is_never_made_again(
    k: FakeKubernetes, backend: KubeRayBackend, request_of: Any
) -> None:
    job = request_of()
    assert await backend.ensure(job)
    k.remove("rayjobs", job.name)
    other = open_(k)
    assert await other.ensure(job)
    seen = await other.observe(job)
    assert seen.job is JobState.ABSENT
    assert judge(seen, job.limits, time.time()).phase is Phase.LOST
    assert not k.items("rayjobs")
    await other.close()


async def test_a_write_whose_answer_is_lost_makes_one_object(
    k: FakeKubernetes, backend: KubeRayBackend, request_of: Any
) -> None:
    job = request_of()
    k.fail("create", "rayjobs", "drop", times=1)
    while not await backend.ensure(job):
        await asyncio.sleep(0)
    assert len(k.items("rayjobs")) == 1


async def test_a_job_runs_to_its_result(
    k: FakeKubernetes, backend: KubeRayBackend, ray: RayDashboard, request_of: Any
) -> None:
    job = request_of()
    await backend.ensure(job)
    assert (await backend.observe(job)).job is JobState.QUEUED
    child = start_child(k, job)
    come_up(k, child, ray)
    k.status("rayjobs", job.name, {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"})
    seen = await backend.observe(job)
    assert (seen.cluster, seen.job) == (ClusterState.READY, JobState.RUNNING)
    outcome = Outcome(request=job.name, value={"step": 3})
    objects.write_json(job.outbox("result"), outcome.to_dict())
    k.status("rayjobs", job.name, {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"})
    seen = await backend.observe(job)
    verdict = judge(seen, job.limits, time.time())
    assert (verdict.phase, verdict.value) == (Phase.SUCCEEDED, {"step": 3})


async def test_an_operator_that_is_down_does_not_hold_a_result_back(
    k: FakeKubernetes, backend: KubeRayBackend, ray: RayDashboard, request_of: Any
) -> None:
    job = request_of()
    await backend.ensure(job)
    come_up(k, start_child(k, job), ray)
    k.status("rayjobs", job.name, {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"})
    ray.jobs[job.name] = {"status": "SUCCEEDED", "message": "", "metadata": {}}
    objects.write_json(job.outbox("result"), Outcome(request=job.name).to_dict())
    assert judge(await backend.observe(job), job.limits, time.time()).phase is Phase.SUCCEEDED


async def test_a_cluster_is_ready_when_its_slices_are(
    k: FakeKubernetes, backend: KubeRayBackend, request_of: Any
) -> None:
    cluster = request_of("cluster", Kind.CLUSTER)
    assert await backend.ensure(cluster)
    assert (await backend.observe(cluster)).cluster is ClusterState.STARTING
    come_up(k, cluster.name)
    seen = await backend.observe(cluster)
    assert (seen.cluster, seen.lacking, seen.job) == (ClusterState.READY, "", None)
    assert [(each["hosts"], each["chips"]) for each in seen.facts["slices"]] == [(4, 16)]
    assert judge(seen, cluster.limits, time.time()).phase is Phase.SUCCEEDED


async def test_a_job_of_a_shared_cluster_is_rays_alone(
    k: FakeKubernetes, backend: KubeRayBackend, ray: RayDashboard, request_of: Any
) -> None:
    cluster = request_of("cluster", Kind.CLUSTER)
    await backend.ensure(cluster)
    job = request_of(cluster=cluster.name, slice="", options={})
    assert not await backend.ensure(job)
    come_up(k, cluster.name, ray)
    assert await backend.ensure(job)
    assert ray.jobs[job.name]["runtime_env"] == {"working_dir": "file:///code.zip"}
    assert (await backend.observe(job)).job is JobState.RUNNING
    ray.end(job.name)
    objects.write_json(job.outbox("result"), Outcome(request=job.name, value={"rows": 1}).to_dict())
    assert judge(await backend.observe(job), job.limits, time.time()).value == {"rows": 1}
    assert not k.items("rayjobs")
    await backend.stop(job)
    assert k.find("rayclusters", cluster.name)


async def test_a_job_on_a_cluster_that_is_gone_is_lost(
    k: FakeKubernetes, backend: KubeRayBackend, ray: RayDashboard, request_of: Any
) -> None:
    cluster = request_of("cluster", Kind.CLUSTER)
    await backend.ensure(cluster)
    come_up(k, cluster.name, ray)
    job = request_of(cluster=cluster.name, slice="", options={})
    await backend.ensure(job)
    k.remove("rayclusters", cluster.name)
    assert judge(await backend.observe(job), job.limits, time.time()).phase is Phase.LOST
    with pytest.raises(LostError):
        await backend.ensure(replace(job, identity=replace(job.identity, attempt=2)))


async def test_what_is_deleted_is_gone_with_its_pods(
    k: FakeKubernetes, backend: KubeRayBackend, request_of: Any
) -> None:
    cluster = request_of("cluster", Kind.CLUSTER)
    await backend.ensure(cluster)
    come_up(k, cluster.name)
    k.edit("rayclusters", cluster.name, {"metadata": {"finalizers": ["test/held"]}})
    deleting = asyncio.create_task(backend.delete(cluster))
    async with asyncio.timeout(10):
        while not (k.find("rayclusters", cluster.name) or {})["metadata"].get("deletionTimestamp"):
            await asyncio.sleep(0.01)
    assert not await backend.ensure(cluster)
    assert not deleting.done()
    k.edit("rayclusters", cluster.name, {"metadata": {"finalizers": None}})
    async with asyncio.timeout(10):
        await deleting
    assert not k.items("pods")
    await backend.delete(cluster)


async def test_looking_gives_a_sign_of_life_now_and_then(
    k: FakeKubernetes, backend: KubeRayBackend, request_of: Any
) -> None:
    cluster = request_of("cluster", Kind.CLUSTER, ttl_s=300)
    await backend.ensure(cluster)
    await backend.observe(cluster)
    assert k.count("patch", "rayclusters") == 0
    k.edit("rayclusters", cluster.name, {"metadata": {"annotations": {"airflow-raytpu/heartbeat": "1"}}})
    for _ in range(3):
        await backend.observe(cluster)
    assert k.count("patch", "rayclusters") == 1
    assert float(annotations(k, cluster)["airflow-raytpu/heartbeat"]) > time.time() - 60


def annotations(k: FakeKubernetes, cluster: RayRequest) -> dict[str, str]:
    found = k.find("rayclusters", cluster.name)
    assert found is not None
    return dict(found["metadata"]["annotations"])


async def test_the_slices_of_clusters_that_start_answer_or_do_not(
    k: FakeKubernetes, backend: KubeRayBackend, ray: RayDashboard, request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        cluster = request_of(f"cluster{number}", Kind.CLUSTER)
        await backend.ensure(cluster)
        if number == 1:
            come_up(k, cluster.name, ray)
        elif number == 2:
            come_up(k, cluster.name)  # without a token nobody gets in
    conditions = {each.cluster_slug: each.condition for each in await backend.slices()}
    assert conditions == {
        "digits-cluster0": SliceCondition.STARTING,
        "digits-cluster1": SliceCondition.BROKEN,  # its Ray shows no host
        "digits-cluster2": SliceCondition.BROKEN,
    }
    with pytest.raises(LostError):
        await backend.slices("nowhere")


async def test_what_kubernetes_refuses_ends_the_request(k: FakeKubernetes, request_of: Any) -> None:
    nobody = open_(k, k.account("nobody", []))
    with pytest.raises(ForbiddenError, match="rayjobs"):
        await nobody.ensure(request_of())
    await nobody.close()
    backend = open_(k)
    k.uninstall("rayjobs")
    with pytest.raises(NotInstalledError, match="rayjobs"):
        await backend.ensure(request_of())
    await backend.close()


async def test_no_answer_is_no_verdict(k: FakeKubernetes, request_of: Any) -> None:
    backend = KubeRayBackend(
        TestAccess(k.url, k.token), "default", "tests", Reach(way=Way.PROXY), Pace(whole=0.1, first_pause=0.01)
    )
    job = request_of()
    assert await backend.ensure(job)
    async with k.outage():
        for _ in range(3):
            seen = await backend.observe(job)
            assert not seen.reachable
            assert judge(seen, job.limits, time.time()).phase is Phase.WAITING
    assert (await backend.observe(job)).reachable
    await backend.close()


async def test_a_task_that_waits_costs_no_request(k: FakeKubernetes, backend: KubeRayBackend, request_of: Any) -> None:
    job = request_of()
    await backend.ensure(job)
    await backend.observe(job)
    waiting = asyncio.create_task(backend.wait(job, 0.01))
    async with asyncio.timeout(10):
        while k.live_watches < 5:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    waiting.cancel()
    await backend.observe(job)
    before = len(k.trouble.calls)
    for _ in range(50):
        await backend.observe(job)
    assert len(k.trouble.calls) == before
    # And what changes is told at once.
    waiting = asyncio.create_task(backend.wait(job, 60))
    await asyncio.sleep(0.01)
    k.status("rayjobs", job.name, {"jobDeploymentStatus": "Initializing"})
    async with asyncio.timeout(10):
        await waiting
