"""Rollouts on RayServices of their own: one service for each application, and what it states is what proved good."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

from airflow_raytpu.backends.kuberay import reach
from airflow_raytpu.backends.kuberay.backend import KubeRayBackend
from airflow_raytpu.backends.kuberay.making import serving
from airflow_raytpu.model import application
from airflow_raytpu.model.errors import ForeignObjectError, RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import ClusterState, JobState
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.model.verdict import Phase, judge
from airflow_raytpu.storage import objects
from tests.doubles.kubernetes.controller import ScriptedController
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.doubles.ray_dashboard import RayDashboard
from tests.unit.backends.kuberay.coming_up import open_

Asks = Callable[..., RayRequest]


@pytest.fixture
def asks(request_of: Any, tmp_path: Any) -> Asks:
    """A rollout of *version*, each in a run of its own."""

    def make(version: int, run: str = "", **changes: Any) -> RayRequest:
        run = run or f"run{version}"
        made: RayRequest = request_of(
            "serve",
            Kind.SERVE,
            identity=Identity(deployment="tests", dag_id="digits", task_id="serve", run_id=run),
            storage=(tmp_path / run).as_uri(),
            arguments={
                "app": "digits.serve:build",
                "app_args": {"version": version},
                "model": None,
                "name": "digits",
                "route_prefix": "/",
                "rollout": {"smoke": [], "deadline_s": 600.0},
            },
            **changes,
        )
        return made

    return make


class Stage:
    """KubeRay and a Ray head, as far as a service needs them."""

    def __init__(self, k: FakeKubernetes, ray: RayDashboard) -> None:
        self.k, self.ray = k, ray
        self.controller = ScriptedController(k)

    async def comes_up(self) -> None:
        await self.controller.step("ready")
        cluster = self.controller.cluster()
        self.controller.clusters.secret(cluster, self.ray.token)
        self.k.serve(f"{cluster['metadata']['name']}-head-svc", {reach.DASHBOARD_PORT: self.ray.url})

    def ends(self, rollout: RayRequest, at: float = 0.0, code: str = "") -> None:
        value = {"version": "v", application.PROVEN_AT: at or time.time()}
        outcome = Outcome(request=rollout.name, value={} if code else value, code=code, cause="no good" if code else "")
        objects.write_json(rollout.outbox("result"), outcome.to_dict())
        self.ray.end(rollout.name, "FAILED" if code else "SUCCEEDED")

    @property
    def service(self) -> dict[str, Any]:
        (found,) = self.k.items("rayservices")
        return dict(found)

    def states(self) -> dict[str, Any]:
        """The application that KubeRay would bring back."""
        (found,) = yaml.safe_load(self.service["spec"]["serveConfigV2"])["applications"]
        return dict(found)


@pytest.fixture
def stage(k: FakeKubernetes, ray: RayDashboard) -> Stage:
    return Stage(k, ray)


async def served(backend: KubeRayBackend, stage: Stage, rollout: RayRequest) -> None:
    """*rollout* is the first version, and proves good."""
    assert not await backend.ensure(rollout)
    await stage.comes_up()
    assert await backend.ensure(rollout)
    stage.ends(rollout)
    assert judge(await backend.observe(rollout), rollout.limits, time.time()).phase is Phase.SUCCEEDED


async def test_the_first_rollout_makes_the_service_and_then_runs_on_it(
    k: FakeKubernetes, backend: KubeRayBackend, stage: Stage, asks: Asks
) -> None:
    first = asks(1)
    others = [open_(k) for _ in range(3)]
    for other in (backend, *others):
        assert not await other.ensure(first)
    (service,) = k.items("rayservices")
    assert service["metadata"]["name"] == application.service(first).name
    assert "airflow-raytpu/version" not in service["metadata"]["annotations"]
    assert stage.states() == application.configuration(first)
    waits = await backend.observe(first)
    assert (waits.cluster, waits.job) == (ClusterState.STARTING, JobState.QUEUED)
    await stage.comes_up()
    for other in (backend, *others):
        assert await other.ensure(first)
    assert list(stage.ray.jobs) == [first.name]
    seen = await backend.observe(first)
    assert (seen.cluster, seen.job) == (ClusterState.READY, JobState.RUNNING)
    assert seen.facts["endpoint"] == f"http://{service['metadata']['name']}-serve-svc.default.svc:8000"
    assert not k.items("rayjobs")
    for other in others:
        await other.close()


async def test_a_version_that_proved_good_is_what_comes_back_and_nothing_else_of_the_service_changes(
    k: FakeKubernetes, backend: KubeRayBackend, stage: Stage, asks: Asks
) -> None:
    first, second = asks(1), asks(2)
    await served(backend, stage, first)
    before = stage.service
    assert stage.states() == application.configuration(first)
    assert before["metadata"]["annotations"]["airflow-raytpu/version"] == stage.states()["args"]["version"]
    assert await backend.ensure(second)
    assert stage.states() == application.configuration(first)  # nothing is proven yet
    submitted = objects.read_json(second.outbox("request"))
    assert submitted["arguments"][application.GOOD] == application.configuration(first)
    stage.ends(second)
    # Whoever sees the success has it noted before anybody is told, and again is no harm.
    other = open_(k)
    assert (await other.observe(second)).outcome is not None
    await other.close()
    assert stage.states() == application.configuration(second)
    generation = stage.service["metadata"]["generation"]
    await backend.observe(second)
    await backend.stop(second)
    assert stage.service["metadata"]["generation"] == generation
    changed = {**before["spec"], "serveConfigV2": stage.service["spec"]["serveConfigV2"]}
    assert stage.service["spec"] == changed


async def test_a_success_that_is_seen_late_does_not_undo_a_later_one(
    backend: KubeRayBackend, stage: Stage, asks: Asks
) -> None:
    first, late, second = asks(1), asks(2), asks(3)
    await served(backend, stage, first)
    now = time.time()
    for rollout, at in ((late, now + 1), (second, now + 2)):
        assert await backend.ensure(rollout)
        stage.ends(rollout, at)
    for rollout in (second, late):
        await backend.observe(rollout)
    assert stage.states() == application.configuration(second)


async def test_a_success_on_a_service_that_is_gone_says_nothing_of_its_successor(
    backend: KubeRayBackend, stage: Stage, asks: Asks
) -> None:
    first, second = asks(1), asks(2)
    await served(backend, stage, first)
    stage.k.edit("rayservices", application.service(first).name, {"metadata": {"finalizers": None}})
    await backend.delete(application.service(first))
    assert not await backend.ensure(second)
    late = open_(stage.k)
    await late.observe(first)
    await late.close()
    assert stage.states() == application.configuration(second)
    assert "airflow-raytpu/version" not in stage.service["metadata"]["annotations"]


async def test_what_cannot_be_noted_is_no_success_yet(
    k: FakeKubernetes, backend: KubeRayBackend, stage: Stage, asks: Asks
) -> None:
    first, second = asks(1), asks(2)
    await served(backend, stage, first)
    assert await backend.ensure(second)
    stage.ends(second)
    k.fail("patch", "rayservices", 409, times=1)
    seen = await backend.observe(second)
    assert judge(seen, second.limits, time.time()).phase is Phase.WAITING
    assert judge(await backend.observe(second), second.limits, time.time()).phase is Phase.SUCCEEDED
    assert stage.states() == application.configuration(second)


async def test_a_first_version_that_fails_takes_its_service_with_it(
    k: FakeKubernetes, backend: KubeRayBackend, stage: Stage, asks: Asks
) -> None:
    first = asks(1)
    await backend.ensure(first)
    await stage.comes_up()
    await backend.ensure(first)
    stage.ends(first, code="RT304")
    assert judge(await backend.observe(first), first.limits, time.time()).code == "RT304"
    await backend.stop(first)
    assert not k.items("rayservices") or stage.service["metadata"]["deletionTimestamp"]


@pytest.mark.parametrize("fails", [True, False])
async def test_a_later_version_that_fails_or_is_stopped_leaves_the_service(
    backend: KubeRayBackend, stage: Stage, asks: Asks, fails: bool
) -> None:
    first, second = asks(1), asks(2)
    await served(backend, stage, first)
    assert await backend.ensure(second)
    if fails:
        stage.ends(second, code="RT304")
    await backend.stop(second)
    assert stage.ray.jobs[second.name]["status"] == ("FAILED" if fails else "STOPPED")
    await backend.delete(second)
    assert second.name not in stage.ray.jobs
    assert not stage.service["metadata"].get("deletionTimestamp")
    assert stage.states() == application.configuration(first)


async def test_who_waits_for_anothers_service_does_not_take_it_away(
    k: FakeKubernetes, backend: KubeRayBackend, stage: Stage, asks: Asks
) -> None:
    creator, guest = asks(1), asks(2)
    await backend.ensure(creator)
    await backend.ensure(guest)
    await backend.stop(guest)
    assert k.items("rayservices")
    await backend.stop(creator)
    assert not k.items("rayservices")
    # The one who waited makes it anew.
    assert not await backend.ensure(guest)
    assert stage.states() == application.configuration(guest)


async def test_another_slice_is_another_service(backend: KubeRayBackend, stage: Stage, asks: Asks) -> None:
    await served(backend, stage, asks(1))
    with pytest.raises(RequestError, match=r"v6e:4x4, and v6e:4x8 is asked for.*\n.*RayServeDeleteOperator"):
        await backend.ensure(asks(2, slice="v6e:4x8"))


async def test_a_service_of_that_name_that_is_anothers_is_left_alone(
    k: FakeKubernetes, backend: KubeRayBackend, asks: Asks
) -> None:
    rollout = asks(1)
    await backend.ensure(rollout)
    edit = {"metadata": {"annotations": {"airflow-raytpu/owner": "another|d|t|r|-1|1"}}}
    k.edit("rayservices", application.service(rollout).name, edit)
    stranger = open_(k)
    with pytest.raises(ForeignObjectError, match="another"):
        await stranger.ensure(rollout)
    await stranger.close()
    with pytest.raises(ForeignObjectError, match="another"):
        await backend.delete(application.service(rollout))
    await backend.stop(rollout)
    assert k.items("rayservices")


async def test_a_rollout_whose_service_is_gone_is_lost(
    k: FakeKubernetes, backend: KubeRayBackend, stage: Stage, asks: Asks
) -> None:
    first, second = asks(1), asks(2)
    await served(backend, stage, first)
    assert await backend.ensure(second)
    k.edit("rayservices", application.service(second).name, {"metadata": {"finalizers": None}})
    k.remove("rayservices", application.service(second).name)
    assert judge(await backend.observe(second), second.limits, time.time()).phase is Phase.LOST


async def test_deleting_the_service_ends_all_of_it(
    k: FakeKubernetes, backend: KubeRayBackend, stage: Stage, asks: Asks
) -> None:
    first = asks(1)
    await served(backend, stage, first)
    k.edit("rayservices", application.service(first).name, {"metadata": {"finalizers": None}})
    await backend.delete(application.service_called("tests", "digits"))
    assert not any(k.items(plural) for plural in ("rayservices", "rayclusters", "pods"))
    await backend.delete(application.service_called("tests", "digits"))


async def test_what_keeps_the_service_from_coming_up_ends_the_rollout(
    backend: KubeRayBackend, stage: Stage, asks: Asks
) -> None:
    first = asks(1)
    await backend.ensure(first)
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "ValidationFailed",
        "message": "headService",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    stage.k.status("rayservices", application.service(first).name, {"conditions": [ready]})
    seen = await backend.observe(first)
    assert seen.fault is not None
    assert seen.fault.code == "RT106"


def test_only_what_is_stated_and_proved_good_comes_back(asks: Asks) -> None:
    stated = {"spec": {"serveConfigV2": yaml.safe_dump({"applications": [{"name": "digits"}, "odd"]})}}
    proven = {"metadata": {"annotations": {"airflow-raytpu/version": "v", "airflow-raytpu/proven-at": "soon"}}}
    assert serving.good(stated, "digits") is None
    assert serving.good({**stated, **proven}, "digits") == {"name": "digits"}
    assert serving.good({**stated, **proven}, "letters") is None
    assert serving.good({**proven, "spec": {"serveConfigV2": "- a"}}, "digits") is None
    proven["metadata"]["resourceVersion"] = "7"  # type: ignore[assignment]
    assert serving.proven(proven, asks(1), 1.0)["metadata"]["resourceVersion"] == "7"


def test_a_service_is_one_for_every_run_and_apart_from_a_shared_cluster(asks: Asks) -> None:
    one, other = (application.service(asks(1, run)) for run in ("a", "b"))
    assert one.name == other.name == application.service_called("tests", "digits").name
    shared = Identity(deployment="tests", dag_id="", task_id="digits", run_id="")
    assert shared.remote_name() != one.name
    assert not application.has_service(one)
    assert not application.has_service(replace(asks(1), cluster="shared"))
