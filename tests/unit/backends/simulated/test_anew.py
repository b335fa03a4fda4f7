"""What is made anew on simulated slices when it is gone, and what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated import cluster, state
from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.backends.simulated.state import Phase
from airflow_raytpu.model.errors import ClusterError
from airflow_raytpu.model.observation import ClusterState, JobState
from tests.doubles.ray_dashboard import RayDashboard
from tests.simulated_cluster import cluster_request, job_request
from tests.unit.backends.simulated.test_state import RECORD

pytestmark = pytest.mark.usefixtures("no_supervisor")


def change(root: Path, name: str, **changes: object) -> str:
    """The uid of the cluster that was changed."""
    found = cluster.attach(root, name)
    assert found is not None
    state.write(found.folder, replace(found.record, **changes))  # type: ignore[arg-type]
    return found.record.uid


async def test_a_job_that_had_its_cluster_gets_no_other_one(backend: SimulatedBackend, root: Path, tmp_path) -> None:
    """A triggerer that hung looks for it when another one has seen its end, and has freed its slices."""
    request = job_request("alone", tmp_path, "file:///code.zip")
    assert not await backend.ensure(request)
    async with RayDashboard().running() as ray:
        found = cluster.attach(root, request.name)
        assert found is not None
        (found.folder / "token").write_text(ray.token)
        up = {"phase": Phase.READY, "supervisor": ProcessId.own(), "dashboard": ray.url, "slices": RECORD.slices}
        change(root, request.name, **up)
        assert await backend.ensure(request)
        assert list(ray.jobs) == [request.name]
        cluster.discard(found.folder)
        late = SimulatedBackend(root)
        assert await late.ensure(request)
        assert cluster.attach(root, request.name) is None
        seen = await late.observe(request)
        assert (seen.cluster, seen.job) == (ClusterState.ABSENT, JobState.ABSENT)
        await late.close()


async def test_a_cluster_for_others_whose_head_died_is_made_anew_when_it_is_asked_for(
    backend: SimulatedBackend, root: Path
) -> None:
    request = cluster_request("team", "v6e:4x4")
    assert await backend.ensure(request)
    failed = change(root, request.name, phase=Phase.FAILED, detail="The Ray head died.")
    assert (await backend.observe(request)).cluster is ClusterState.FAILED
    assert await backend.ensure(request)
    anew = cluster.attach(root, request.name)
    assert anew is not None
    assert anew.record.uid != failed
    assert anew.record.phase is Phase.STARTING


async def test_a_jobs_own_cluster_that_failed_is_left_to_be_read(
    backend: SimulatedBackend, root: Path, tmp_path
) -> None:
    request = job_request("alone", tmp_path, "file:///code.zip")
    assert not await backend.ensure(request)
    failed = change(root, request.name, phase=Phase.FAILED, detail="The Ray head died.")
    with pytest.raises(ClusterError, match="The Ray head died"):
        await backend.ensure(request)
    found = cluster.attach(root, request.name)
    assert found is not None
    assert found.record.uid == failed
