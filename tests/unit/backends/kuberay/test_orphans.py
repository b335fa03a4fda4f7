"""Orphans on an API server: ours alone, silent for long enough, gone when it says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from airflow_raytpu.backends.kuberay import life, orphans
from airflow_raytpu.backends.kuberay.api import RAYCLUSTERS, Pace
from airflow_raytpu.backends.kuberay.backend import KubeRayBackend
from airflow_raytpu.backends.kuberay.reach import Reach, Way
from airflow_raytpu.model import application
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import BackendUnreachable, ClusterError, ForbiddenError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.orphans import SKEW_S
from airflow_raytpu.model.request import Kind, RayRequest
from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.kinds import crds_folder
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.doubles.virtual_time import VirtualTime

HOUR = 3600.0


class Clock:
    """The reaper's clock: this machine's, and so many seconds later."""

    def __init__(self) -> None:
        self.later = 0.0

    def time(self) -> float:
        return time.time() + self.later


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(orphans, "time", made)
    monkeypatch.setattr(orphans, "_GONE_POLL_S", 0.01)
    return made


@pytest.fixture
async def k() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes(crds=crds_folder()) as server:
        yield server


@pytest.fixture
async def backend(k: FakeKubernetes) -> AsyncIterator[KubeRayBackend]:
    time = VirtualTime()
    pace = Pace(once=1.0, whole=1.0, clock=time.clock, sleep=time.sleep)
    made = KubeRayBackend(TestAccess(k.url, k.token), "default", "tests", Reach(way=Way.PROXY), pace)
    yield made
    await made.close()


@pytest.fixture
def request_of(tmp_path: Path) -> Any:
    def make(task_id: str, kind: Kind, deployment: str = "tests", **changes: Any) -> RayRequest:
        return RayRequest(
            **{
                "identity": Identity(deployment=deployment, dag_id="digits", task_id=task_id, run_id="run"),
                "kind": kind,
                "slice": "v6e:4x4",
                "storage": (tmp_path / deployment).as_uri(),
                "limits": Deadlines().since(time.time()),
                "code": None if kind is Kind.CLUSTER else "file:///code.zip",
                "options": {"image": "ray:1"},
                **changes,
            }
        )

    return make


@pytest.fixture
async def cluster(backend: KubeRayBackend, request_of: Any) -> RayRequest:
    made: RayRequest = request_of("cluster", Kind.CLUSTER)
    assert await backend.ensure(made)
    return made


@pytest.fixture
async def job(backend: KubeRayBackend, request_of: Any) -> RayRequest:
    made: RayRequest = request_of("train", Kind.TRAIN)
    assert await backend.ensure(made)
    return made


def start_child(k: FakeKubernetes, job: RayRequest, **meta: Any) -> str:
    """What KubeRay makes of a RayJob."""
    top = k.find("rayjobs", job.name)
    assert top is not None
    owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": job.name, "uid": top["metadata"]["uid"]}
    kept = {part: top["metadata"][part] for part in ("labels", "annotations")}
    name = f"{job.name}-abcde"
    body = {
        "metadata": {"name": name, **kept, "ownerReferences": [owner], **meta},
        "spec": top["spec"]["rayClusterSpec"],
    }
    child = k.put("rayclusters", body)
    reference = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": name, "uid": child["metadata"]["uid"]}
    k.put(
        "pods",
        {
            "metadata": {"name": f"{name}-head", "labels": kept["labels"], "ownerReferences": [reference]},
            "spec": {"containers": [{"name": "ray", "image": "ray:1"}]},
        },
    )
    run(k, job, "RUNNING", "Running", rayClusterName=name)
    return name


def run(k: FakeKubernetes, job: RayRequest, status: str, deployment: str, **more: Any) -> None:
    k.status("rayjobs", job.name, {"jobStatus": status, "jobDeploymentStatus": deployment, **more})


def annotate(k: FakeKubernetes, plural: str, name: str, **values: str | None) -> None:
    notes = {f"airflow-raytpu/{key}": value for key, value in values.items()}
    k.edit(plural, name, {"metadata": {"annotations": notes}})


def beat(k: FakeKubernetes, plural: str, name: str, at: float) -> None:
    annotate(k, plural, name, heartbeat=f"{at:.0f}")


async def names(backend: KubeRayBackend, older_than_s: float = HOUR, deployment: str = "tests") -> list[str]:
    return [each.name for each in await backend.orphans(deployment, older_than_s)]


async def test_a_silent_cluster_is_found_and_goes_with_its_pods(
    k: FakeKubernetes, backend: KubeRayBackend, cluster: RayRequest, clock: Clock
) -> None:
    assert await names(backend) == []
    clock.later = 2 * HOUR
    (found,) = await backend.orphans("tests", HOUR)
    assert (found.kind, found.name, found.owner, found.why) == (
        "RayCluster",
        cluster.name,
        cluster.identity,
        "not ready",
    )
    assert found.silent_s(clock.time()) == pytest.approx(2 * HOUR, abs=60)
    assert k.count("patch") == k.count("delete") == 0
    assert await backend.reap(found)
    assert k.items("rayclusters") == []
    assert await backend.reap(found)


async def test_a_silent_job_is_reaped_as_a_whole_and_its_cluster_never_alone(
    k: FakeKubernetes, backend: KubeRayBackend, job: RayRequest, clock: Clock
) -> None:
    start_child(k, job)
    clock.later = 2 * HOUR
    (found,) = await backend.orphans("tests", HOUR)
    assert (found.kind, found.name, found.why) == ("RayJob", job.name, "running")
    assert await backend.reap(found)
    assert [k.items(plural) for plural in ("rayjobs", "rayclusters", "pods")] == [[], [], []]
    assert k.count("delete", "rayclusters.ray.io") == k.count("delete", "rayclusters") == 0


async def test_a_sign_of_life_on_the_jobs_own_cluster_is_the_jobs(
    k: FakeKubernetes, backend: KubeRayBackend, job: RayRequest, clock: Clock
) -> None:
    child = start_child(k, job)
    clock.later = 5 * HOUR
    beat(k, "rayclusters", child, clock.time() - 60)
    assert await names(backend) == []
    # Of an earlier cluster's name, or of somebody else's, it is none.
    stranger = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": job.name, "uid": "another"}
    k.edit("rayclusters", child, {"metadata": {"ownerReferences": [stranger]}})
    assert await names(backend) == [job.name]


async def test_a_job_that_waits_for_its_cluster_is_given_signs_of_life_itself(
    k: FakeKubernetes, backend: KubeRayBackend, job: RayRequest, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.later = 5 * HOUR
    assert await names(backend) == [job.name]
    monkeypatch.setattr(life, "is_due", lambda item, now: True)
    monkeypatch.setattr(
        life, "beat", lambda now: {"metadata": {"annotations": {life.naming.HEARTBEAT: str(clock.time())}}}
    )
    await backend.observe(job)
    assert await names(backend) == []


@pytest.mark.parametrize(
    ("ttl_s", "silent_s", "older_than_s", "orphan"),
    [
        (300, 700, 0, True),
        (300, 500, 0, False),  # within five minutes of its time to live the clocks may be wrong
        (300, 700, 1000, False),
        (300, 1100, 1000, True),
        (7200, 4000, HOUR, False),  # its own time to live is the longer one
        (7200, 7600, HOUR, True),
    ],
)
async def test_both_the_objects_time_and_the_reapers_must_be_over(
    backend: KubeRayBackend,
    request_of: Any,
    clock: Clock,
    ttl_s: float,
    silent_s: float,
    older_than_s: float,
    orphan: bool,
) -> None:
    await backend.ensure(request_of("cluster", Kind.CLUSTER, ttl_s=ttl_s))
    clock.later = silent_s
    assert bool(await names(backend, older_than_s)) is orphan


@pytest.mark.parametrize("skew_s", [-SKEW_S, SKEW_S])
async def test_clocks_five_minutes_apart_kill_nothing_that_is_looked_at(
    k: FakeKubernetes, backend: KubeRayBackend, cluster: RayRequest, clock: Clock, skew_s: float
) -> None:
    clock.later = 10 * HOUR
    quarter = cluster.ttl_s / 4
    beat(k, "rayclusters", cluster.name, clock.time() + skew_s - quarter)
    assert await names(backend, 0) == []


async def test_what_is_another_deployments_is_not_even_seen(
    k: FakeKubernetes, backend: KubeRayBackend, request_of: Any, clock: Clock
) -> None:
    theirs = [request_of("cluster", Kind.CLUSTER, deployment=other) for other in ("tests2", "tests|digits", "TESTS")]
    for each in theirs:
        await backend.ensure(each)
    clock.later = 99 * HOUR
    assert await names(backend) == []
    # Nor where somebody has put our label on it.
    for each in theirs:
        k.edit("rayclusters", each.name, {"metadata": {"labels": {"airflow-raytpu/deployment": "tests"}}})
    assert await names(backend) == []
    assert await names(backend, deployment="tests2") == []
    assert len(k.items("rayclusters")) == 3


FOREIGN = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "u"}


@pytest.mark.parametrize(
    "edit",
    [
        {"ownerReferences": [FOREIGN]},
        {"annotations": {"airflow-raytpu/owner": None}},
        {"annotations": {"airflow-raytpu/owner": "tests|digits|other|run|-1|1"}},
        {"annotations": {"airflow-raytpu/owner": "tests|digits|cluster|run|-1|01"}},
        {"annotations": {"airflow-raytpu/owner": "somebody"}},
        {"annotations": {"airflow-raytpu/ttl-seconds": None}},
        {"annotations": {"airflow-raytpu/ttl-seconds": "nan"}},
        {"annotations": {"airflow-raytpu/ttl-seconds": "inf"}},
        {"labels": {"app.kubernetes.io/managed-by": "helm"}},
        {"labels": {"airflow-raytpu/request": "another"}},
        {"labels": {"airflow-raytpu/deployment": None}},
    ],
    ids=str,
)
async def test_what_was_edited_until_it_is_not_surely_ours_stays(
    k: FakeKubernetes, backend: KubeRayBackend, cluster: RayRequest, clock: Clock, edit: dict[str, Any]
) -> None:
    clock.later = 2 * HOUR
    (before,) = await backend.orphans("tests", HOUR)
    k.edit("rayclusters", cluster.name, {"metadata": edit})
    assert await names(backend) == []
    if not {"labels", "ownerReferences"} & edit.keys() and "ttl" not in str(edit):
        assert not await backend.reap(before)
    assert k.find("rayclusters", cluster.name)


@pytest.mark.parametrize("heartbeat", [None, "", "yesterday", "nan", "-5"])
async def test_a_spoilt_sign_of_life_is_none_and_the_objects_making_counts(
    k: FakeKubernetes, backend: KubeRayBackend, cluster: RayRequest, clock: Clock, heartbeat: str | None
) -> None:
    annotate(k, "rayclusters", cluster.name, heartbeat=heartbeat)
    assert await names(backend, 0) == []
    clock.later = 2 * HOUR
    assert await names(backend) == [cluster.name]


async def test_who_looked_between_the_list_and_the_end_keeps_it(
    k: FakeKubernetes, backend: KubeRayBackend, cluster: RayRequest, job: RayRequest, clock: Clock
) -> None:
    child = start_child(k, job)
    clock.later = 2 * HOUR
    found = {each.kind: each for each in await backend.orphans("tests", HOUR)}
    assert set(found) == {"RayJob", "RayCluster"}
    beat(k, "rayclusters", cluster.name, clock.time())
    beat(k, "rayclusters", child, clock.time())
    assert not await backend.reap(found["RayCluster"])
    assert not await backend.reap(found["RayJob"])
    assert len(k.items("rayclusters")) == 2


async def test_a_newer_object_of_the_same_name_stays(
    k: FakeKubernetes, backend: KubeRayBackend, cluster: RayRequest, clock: Clock
) -> None:
    clock.later = 2 * HOUR
    (found,) = await backend.orphans("tests", HOUR)
    k.remove("rayclusters", cluster.name)
    await backend.ensure(cluster)
    assert await backend.reap(found)
    (there,) = k.items("rayclusters")
    assert there["metadata"]["uid"] != found.uid


async def test_one_that_is_replaced_at_the_last_moment_stays_too(
    k: FakeKubernetes, backend: KubeRayBackend, cluster: RayRequest, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.later = 2 * HOUR
    (found,) = await backend.orphans("tests", HOUR)
    delete = backend.api.delete

    async def too_late(resource: Any, name: str, uid: str) -> None:
        k.remove("rayclusters", cluster.name)
        await backend.ensure(cluster)
        await delete(resource, name, uid)

    monkeypatch.setattr(backend.api, "delete", too_late)
    assert await backend.reap(found)
    assert len(k.items("rayclusters")) == 1


async def test_a_job_that_ended_and_was_left_goes_after_a_while(
    k: FakeKubernetes, backend: KubeRayBackend, request_of: Any, clock: Clock
) -> None:
    job = request_of("train", Kind.TRAIN, ttl_s=50 * HOUR)
    await backend.ensure(job)
    clock.later = 10 * HOUR
    assert await names(backend) == []  # its time to live is long
    ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock.time() - 1800))
    run(k, job, "SUCCEEDED", "Complete", endTime=ended)
    assert await names(backend) == []  # whoever waits for it may be about to read it
    clock.later += HOUR
    (found,) = await backend.orphans("tests", HOUR)
    assert found.why == "ended, succeeded"
    assert await backend.reap(found)
    assert k.items("rayjobs") == []


async def test_what_is_served_outlives_its_task(
    k: FakeKubernetes, backend: KubeRayBackend, request_of: Any, clock: Clock
) -> None:
    arguments = {"app": "m:f", "app_args": {}, "model": None, "name": "digits", "route_prefix": "/"}
    service = application.service(request_of("serve", Kind.SERVE, arguments=arguments))
    await backend.ensure(service)
    clock.later = 999 * HOUR
    (found,) = await backend.orphans("tests", HOUR)
    assert (found.name, found.why) == (service.name, "never proved good")  # whoever made it gave up half-way
    k.edit("rayservices", service.name, {"metadata": {"annotations": {"airflow-raytpu/version": "v"}}})
    assert await names(backend) == []
    gave_up = {
        "type": "Ready",
        "status": "False",
        "reason": "InitializingTimeout",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    app = {"applicationStatuses": {"digits": {"status": "RUNNING"}}}
    k.status("rayservices", service.name, {"conditions": [gave_up], "activeServiceStatus": app})
    assert await names(backend) == []
    k.status("rayservices", service.name, {"activeServiceStatus": None})
    (found,) = await backend.orphans("tests", HOUR)
    assert (found.kind, found.why) == ("RayService", "never served, given up")
    assert await backend.reap(found)


async def test_everybodys_cluster_lives_by_its_signs_alone(
    k: FakeKubernetes, backend: KubeRayBackend, request_of: Any, clock: Clock
) -> None:
    everybodys = Identity(deployment="tests", dag_id="", task_id="team", run_id="")
    shared = request_of("cluster", Kind.CLUSTER, identity=everybodys, shared=True)
    await backend.ensure(shared)
    clock.later = 2 * HOUR
    beat(k, "rayclusters", shared.name, clock.time() - 100)
    assert await names(backend) == []
    clock.later = 4 * HOUR
    (found,) = await backend.orphans("tests", HOUR)
    assert found.owner == everybodys
    assert await backend.reap(found)


async def test_what_is_going_already_is_left_to_go(
    k: FakeKubernetes, backend: KubeRayBackend, cluster: RayRequest, clock: Clock
) -> None:
    k.edit("rayclusters", cluster.name, {"metadata": {"finalizers": ["test/held"]}})
    k.remove("rayclusters", cluster.name)
    clock.later = 2 * HOUR
    assert await names(backend) == []


async def test_it_returns_when_all_is_gone_and_not_before(
    k: FakeKubernetes, backend: KubeRayBackend, cluster: RayRequest, clock: Clock
) -> None:
    clock.later = 2 * HOUR
    (found,) = await backend.orphans("tests", HOUR)
    k.edit("rayclusters", cluster.name, {"metadata": {"finalizers": ["test/held"]}})
    reaping = asyncio.create_task(backend.reap(found))
    async with asyncio.timeout(10):
        while not (k.find("rayclusters", cluster.name) or {})["metadata"].get("deletionTimestamp"):
            await asyncio.sleep(0.01)
    assert not reaping.done()
    k.edit("rayclusters", cluster.name, {"metadata": {"finalizers": None}})
    assert await asyncio.wait_for(reaping, 10)


async def test_its_pods_are_waited_for_and_no_later_ones(
    k: FakeKubernetes, backend: KubeRayBackend, job: RayRequest, clock: Clock
) -> None:
    head = f"{start_child(k, job)}-head"
    labels = (k.find("pods", head) or {})["metadata"]["labels"]
    k.edit("pods", head, {"metadata": {"finalizers": ["test/held"]}})
    clock.later = 2 * HOUR
    (found,) = await backend.orphans("tests", HOUR)
    reaping = asyncio.create_task(backend.reap(found))
    async with asyncio.timeout(10):
        while not (k.find("pods", head) or {})["metadata"].get("deletionTimestamp"):
            await asyncio.sleep(0.01)
        assert k.items("rayjobs") == []
        asked = k.count("list", "pods")
        while k.count("list", "pods") < asked + 3:
            await asyncio.sleep(0.01)
        assert not reaping.done()
        spec = {"containers": [{"name": "ray", "image": "ray:1"}]}
        k.put("pods", {"metadata": {"name": "of-the-next", "labels": labels}, "spec": spec})
        k.edit("pods", head, {"metadata": {"finalizers": None}})
        assert await reaping
    assert [each["metadata"]["name"] for each in k.items("pods")] == ["of-the-next"]


async def test_one_that_resists_is_an_error_with_its_limit(
    k: FakeKubernetes, backend: KubeRayBackend, cluster: RayRequest, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "_GONE_WITHIN_S", 0.05)
    clock.later = 2 * HOUR
    (found,) = await backend.orphans("tests", HOUR)
    k.edit("rayclusters", cluster.name, {"metadata": {"finalizers": ["test/held"]}})
    with pytest.raises(ClusterError, match=f"RayCluster {cluster.name} was deleted 0 s ago and is still there"):
        await backend.reap(found)


async def test_an_api_in_trouble_is_no_verdict(
    k: FakeKubernetes, backend: KubeRayBackend, cluster: RayRequest, clock: Clock
) -> None:
    clock.later = 2 * HOUR
    (found,) = await backend.orphans("tests", HOUR)
    k.fail("list", RAYCLUSTERS.full, 503, times=None)
    k.fail("list", RAYCLUSTERS.plural, 503, times=None)
    with pytest.raises(BackendUnreachable):
        await backend.orphans("tests", HOUR)
    k.heal()
    k.fail("delete", "*", "reset", times=None)
    with pytest.raises(BackendUnreachable):
        await backend.reap(found)
    k.heal()
    k.fail("delete", "*", "drop", times=1)
    assert await backend.reap(found)
    assert k.items("rayclusters") == []


async def test_who_may_not_delete_is_told_so(k: FakeKubernetes, cluster: RayRequest, clock: Clock) -> None:
    rules = [
        {"apiGroups": ["ray.io"], "resources": ["rayclusters", "rayjobs", "rayservices"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]
    reader = KubeRayBackend(TestAccess(k.url, k.account("reader", rules)), "default", "tests", Reach(way=Way.PROXY))
    clock.later = 2 * HOUR
    (found,) = await reader.orphans("tests", HOUR)
    with pytest.raises(ForbiddenError, match="delete"):
        await reader.reap(found)
    await reader.close()
    assert k.items("rayclusters")
