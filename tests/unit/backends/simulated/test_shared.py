"""What several tasks share on simulated slices: clusters with a name, and services of applications."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated import cluster, state
from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.backends.simulated.folder import Cluster
from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.backends.simulated.state import Phase
from airflow_raytpu.model import application
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import ClusterState, JobState
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.model.verdict import judge
from airflow_raytpu.storage import objects
from tests.doubles.ray_dashboard import RayDashboard
from tests.simulated_cluster import cluster_request, job_request
from tests.unit.backends.simulated.test_state import RECORD

EVERYBODYS = Identity(deployment="tests", dag_id="", task_id="team", run_id="")
ONE = replace(cluster_request("team", "v6e:4x4", ttl_s=300), identity=EVERYBODYS, shared=True)
ANOTHER = replace(ONE, storage="file:///elsewhere")


pytestmark = pytest.mark.usefixtures("no_supervisor")


@pytest.fixture
def asks(tmp_path: Path) -> Callable[..., RayRequest]:
    """A rollout of *version*, each in a run of its own."""

    def make(version: int, tpu_slice: str = "v6e:2x2") -> RayRequest:
        arguments = {
            "app": "m:f",
            "app_args": {"version": version},
            "model": None,
            "name": "digits",
            "route_prefix": "/",
            "rollout": {"smoke": [], "deadline_s": 60.0},
        }
        more = {"kind": Kind.SERVE, "slice": tpu_slice, "arguments": arguments}
        return job_request(f"serve{version}", tmp_path / str(version), "file:///code.zip", **more)

    return make


def there(root: Path, request: RayRequest) -> Cluster | None:
    return cluster.attach(root, request.cluster_name)


def change(found: Cluster, **changes: object) -> None:
    state.write(found.folder, replace(found.record, **changes))  # type: ignore[arg-type]


def come_up(root: Path, request: RayRequest, ray: RayDashboard) -> None:
    found = there(root, request)
    assert found is not None
    (found.folder / "token").write_text(ray.token)
    change(found, phase=Phase.READY, supervisor=ProcessId.own(), dashboard=ray.url, slices=RECORD.slices, detail="")


def ends(ray: RayDashboard, rollout: RayRequest, code: str = "") -> None:
    value = {"version": "v", application.PROVEN_AT: time.time()}
    outcome = Outcome(request=rollout.name, value=value, code=code, cause="no good" if code else "")
    objects.write_json(rollout.outbox("result"), outcome.to_dict())
    ray.end(rollout.name, "FAILED" if code else "SUCCEEDED")


async def test_the_longest_time_to_live_that_anybody_asked_for_holds(backend: SimulatedBackend, root: Path) -> None:
    await backend.ensure(ONE)
    for asked, holds in ((600.0, 600.0), (60.0, 600.0), (900.0, 900.0)):
        await backend.ensure(replace(ANOTHER, ttl_s=asked))
        found = there(root, ONE)
        assert found is not None
        assert found.record.ttl_s == state.raised_ttl(found.folder, 0.0) == holds
        # The supervisor writes the state as it read it, and takes nothing back.
        change(found, ttl_s=300.0)
        assert state.raised_ttl(found.folder, 300.0) == holds


async def test_one_that_never_came_up_is_given_back_by_its_creator_alone(backend: SimulatedBackend, root: Path) -> None:
    await backend.ensure(ONE)
    await backend.ensure(ANOTHER)
    await backend.stop(ANOTHER)
    assert there(root, ONE)
    await backend.stop(ONE)
    assert there(root, ONE) is None
    assert (await backend.observe(ANOTHER)).cluster is ClusterState.ABSENT
    assert await backend.ensure(ANOTHER)
    await backend.stop(ONE)
    assert there(root, ONE)


async def test_one_that_is_ready_is_never_stopped_by_one_user(
    backend: SimulatedBackend, root: Path, ray: RayDashboard
) -> None:
    await backend.ensure(ONE)
    come_up(root, ONE, ray)
    await backend.stop(ONE)
    await backend.delete(ONE)
    assert there(root, ONE)


async def test_a_rollout_makes_its_service_which_lives_until_it_is_deleted_once_it_served(
    backend: SimulatedBackend, root: Path, ray: RayDashboard, asks: Callable[..., RayRequest]
) -> None:
    first, second = asks(1), asks(2)
    service = application.service(first)
    assert not await backend.ensure(first)
    waits = await backend.observe(first)
    assert (waits.cluster, waits.job) == (ClusterState.STARTING, JobState.QUEUED)
    come_up(root, service, ray)
    assert await backend.ensure(first)
    found = there(root, service)
    assert found is not None
    assert found.record.ttl_s < math.inf
    ends(ray, first)
    assert judge(await backend.observe(first), first.limits, time.time()).phase.final
    found = there(root, service)
    assert found is not None
    assert found.record.ttl_s == math.inf
    assert await backend.orphans("tests", -1e9) == []

    assert await backend.ensure(second)
    ends(ray, second, code="RT304")
    await backend.stop(second)
    await backend.delete(second)
    assert list(ray.jobs) == [first.name]
    with pytest.raises(RequestError, match="RayServeDeleteOperator"):
        await backend.ensure(asks(3, "v6e:4x4"))
    change(found, supervisor=None)  # else this very process would be ended
    await backend.delete(application.service_called("tests", "digits"))
    assert there(root, service) is None


@pytest.mark.parametrize("up", [True, False])
async def test_a_service_that_never_served_is_given_back_by_its_creator(
    backend: SimulatedBackend, root: Path, ray: RayDashboard, asks: Callable[..., RayRequest], up: bool
) -> None:
    creator, guest = asks(1), asks(2)
    service = application.service(creator)
    for rollout in (creator, guest):
        await backend.ensure(rollout)
    if up:
        come_up(root, service, ray)
        assert await backend.ensure(creator)
        ends(ray, creator, code="RT304")
    await backend.stop(guest)
    found = there(root, service)
    assert found is not None
    if up:
        change(found, phase=Phase.READY, supervisor=None)
    await backend.stop(creator)
    assert there(root, service) is None


async def test_a_service_whose_head_died_is_made_anew_by_the_next_rollout(
    backend: SimulatedBackend, root: Path, ray: RayDashboard, asks: Callable[..., RayRequest]
) -> None:
    first, second = asks(1), asks(2)
    service = application.service(first)
    await backend.ensure(first)
    come_up(root, service, ray)
    await backend.ensure(first)
    ends(ray, first)
    await backend.observe(first)
    found = there(root, service)
    assert found is not None
    change(found, phase=Phase.FAILED, detail="The Ray head died.")
    assert await backend.ensure(first)  # it was accepted there
    assert not await backend.ensure(second)
    anew = there(root, service)
    assert anew is not None
    assert (anew.record.uid != found.record.uid, anew.record.phase) == (True, Phase.STARTING)
    await backend.observe(first)  # a success of its predecessor says nothing of it
    anew = there(root, service)
    assert anew is not None
    assert anew.record.ttl_s < math.inf
