"""An object of ours that somebody edited: found or refused, never made twice, never taken for what it is not."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_raytpu.backends.kuberay.backend import KubeRayBackend
from airflow_raytpu.backends.kuberay.manifest import manifest
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import ForeignObjectError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.observation import ClusterState, JobState
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.verdict import Phase, judge
from tests.doubles.kubernetes.kinds import crds_folder
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.unit.backends.kuberay.coming_up import come_up, open_


@pytest.fixture
async def k() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes(crds=crds_folder()) as server:
        yield server


@pytest.fixture
async def backend(k: FakeKubernetes) -> AsyncIterator[KubeRayBackend]:
    made = open_(k)
    yield made
    await made.close()


def asked(folder: Path, kind: Kind = Kind.TRAIN, task_id: str = "train", **options: object) -> RayRequest:
    return RayRequest(
        identity=Identity(deployment="tests", dag_id="digits", task_id=task_id, run_id="manual__10:00+00:00"),
        kind=kind,
        slice="v6e:4x4",
        storage=(folder / "storage").as_uri(),
        limits=Deadlines().since(time.time()),
        code=None if kind is Kind.CLUSTER else "file:///code.zip",
        options={"image": "ray:1", **options},
    )


async def watching(backend: KubeRayBackend, request: RayRequest) -> None:
    """A backend that has its picture from a watch, which goes by labels."""
    await backend.observe(request)
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await backend.wait(request, 1)


async def test_without_its_labels_it_is_still_the_one(
    k: FakeKubernetes, backend: KubeRayBackend, tmp_path: Path
) -> None:
    job = asked(tmp_path)
    await backend.ensure(job)
    await watching(backend, job)
    k.edit("rayjobs", job.name, {"metadata": {"labels": None}})
    k.status("rayjobs", job.name, {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"})
    for each in (backend, open_(k)):
        assert await each.ensure(job)
        seen = await each.observe(job)
        assert seen.job in {JobState.RUNNING, JobState.QUEUED}
        assert not judge(seen, job.limits, time.time()).phase.final
        if each is not backend:
            await each.close()
    assert len(k.items("rayjobs")) == 1
    await backend.stop(job)
    assert not k.items("rayjobs")


@pytest.mark.parametrize("annotations", [None, {"airflow-raytpu/owner": None}, {"airflow-raytpu/owner": "somebody"}])
async def test_without_its_owner_it_is_nobodys_and_is_left_alone(
    k: FakeKubernetes, backend: KubeRayBackend, tmp_path: Path, annotations: dict[str, None] | None
) -> None:
    job = asked(tmp_path)
    await backend.ensure(job)
    k.edit("rayjobs", job.name, {"metadata": {"annotations": annotations}})
    for act in (backend.ensure, backend.stop, backend.delete):
        with pytest.raises(
            ForeignObjectError, match=r"belongs to (somebody|nobody that is known), not to tests\|digits"
        ):
            await act(job)
    assert len(k.items("rayjobs")) == 1


@pytest.mark.parametrize("name", ["ttl-seconds", "heartbeat", "slice"])
@pytest.mark.parametrize("value", [None, "", "soon", "-1", "nan", "1e999"])
async def test_its_other_annotations_may_be_gone_or_wrong(
    k: FakeKubernetes, backend: KubeRayBackend, tmp_path: Path, name: str, value: str | None
) -> None:
    cluster = asked(tmp_path, Kind.CLUSTER, "cluster")
    await backend.ensure(cluster)
    k.edit("rayclusters", cluster.name, {"metadata": {"annotations": {f"airflow-raytpu/{name}": value}}})
    assert await backend.ensure(cluster)
    seen = await backend.observe(cluster)
    assert seen.cluster is ClusterState.STARTING
    assert not judge(seen, cluster.limits, time.time()).phase.final


async def test_a_cluster_whose_hosts_somebody_deleted_is_not_ready(
    k: FakeKubernetes, backend: KubeRayBackend, tmp_path: Path
) -> None:
    """KubeRay's status calls it ready until its operator looks again."""
    cluster = asked(tmp_path, Kind.CLUSTER, "cluster")
    await backend.ensure(cluster)
    come_up(k, cluster.name)
    assert (await backend.observe(cluster)).cluster is ClusterState.READY
    await watching(backend, cluster)
    for pod in k.items("pods"):
        if "head" not in pod["metadata"]["name"]:
            k.remove("pods", pod["metadata"]["name"])
    await watching(backend, cluster)
    seen = await backend.observe(cluster)
    assert judge(seen, cluster.limits, time.time()).phase is not Phase.SUCCEEDED


async def test_a_cluster_that_somebody_made_smaller_is_not_what_was_asked_for(
    k: FakeKubernetes, backend: KubeRayBackend, tmp_path: Path
) -> None:
    cluster = asked(tmp_path, Kind.CLUSTER, "cluster")
    await backend.ensure(cluster)
    found = k.find("rayclusters", cluster.name)
    assert found is not None
    groups = found["spec"]["workerGroupSpecs"]
    k.edit("rayclusters", cluster.name, {"spec": {"workerGroupSpecs": [{**groups[0], "numOfHosts": 2}]}})
    come_up(k, cluster.name)
    verdict = judge(await backend.observe(cluster), cluster.limits, time.time())
    assert verdict.phase is not Phase.SUCCEEDED, verdict


async def test_a_job_that_somebody_suspended_waits_and_is_not_over(
    k: FakeKubernetes, backend: KubeRayBackend, tmp_path: Path
) -> None:
    job = asked(tmp_path)
    await backend.ensure(job)
    k.edit("rayjobs", job.name, {"spec": {"suspend": True}})
    k.status("rayjobs", job.name, {"jobStatus": "STOPPED", "jobDeploymentStatus": "Suspended"})
    verdict = judge(await backend.observe(job), job.limits, time.time())
    assert verdict.phase is Phase.WAITING
    late = judge(await backend.observe(job), job.limits, job.limits.slice_until + 1)
    assert (late.phase, late.code) == (Phase.FAILED, "RT203")


async def test_another_entrypoint_that_succeeds_proves_nothing(
    k: FakeKubernetes, backend: KubeRayBackend, tmp_path: Path
) -> None:
    job = asked(tmp_path)
    await backend.ensure(job)
    k.edit("rayjobs", job.name, {"spec": {"entrypoint": "true"}})
    k.status("rayjobs", job.name, {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"})
    verdict = judge(await backend.observe(job), job.limits, time.time())
    assert (verdict.phase, verdict.code) == (Phase.FAILED, "RT302")


@pytest.mark.parametrize("identity", ["数字" * 125, "-" * 250, "A.b_C" * 50])
async def test_ids_of_250_characters_are_taken_by_kubernetes_and_found_again(
    k: FakeKubernetes, backend: KubeRayBackend, tmp_path: Path, identity: str
) -> None:
    made = asked(tmp_path).to_dict()
    made["identity"] |= {"dag_id": identity, "task_id": identity, "run_id": "manual__2026-11-29T10:00:00+00:00"}
    job = RayRequest.from_dict(made)
    assert await backend.ensure(job)
    assert await backend.ensure(job)
    (found,) = k.items("rayjobs")
    assert found["metadata"]["annotations"]["airflow-raytpu/owner"] == job.identity.owner()


def test_text_that_yaml_would_take_for_something_else_stays_text(tmp_path: Path) -> None:
    words = {"A": "1e-5", "B": "yes", "C": "012", "D": "null", "E": "1_000", "F": ""}
    job = asked(tmp_path, env=words)
    body = json.loads(json.dumps(manifest(job, KubeRayOptions.from_dict(job.options), time.time())))
    groups = body["spec"]["rayClusterSpec"]
    for template in (groups["headGroupSpec"], groups["workerGroupSpecs"][0]):
        env = {each["name"]: each.get("value") for each in template["template"]["spec"]["containers"][0]["env"]}
        assert {name: env[name] for name in words} == words
