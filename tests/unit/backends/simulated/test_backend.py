"""The backend where no cluster is needed, and against a small Ray dashboard."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_raytpu.backends import rayapi
from airflow_raytpu.backends.simulated import backend as backend_module
from airflow_raytpu.backends.simulated import cluster, state
from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.backends.simulated.state import Phase
from airflow_raytpu.model.errors import BackendUnreachable, ClusterError, ForeignObjectError, LostError, RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import ClusterState, JobState
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.slices import SliceCondition
from airflow_raytpu.storage import objects
from tests.doubles.ray_dashboard import RayDashboard
from tests.simulated_cluster import cluster_request, job_request
from tests.unit.backends.simulated.test_state import RECORD

SHARED = cluster_request("cluster", "v6e:4x4")
DEAD = ProcessId(pid=2**22 - 1, began="boot:1")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch, no_supervisor: None) -> None:
    for name in ("_FIRST_PAUSE_S", "_LONGEST_PAUSE_S", "_REOPEN_S"):
        monkeypatch.setattr(rayapi, name, 0.0)
    monkeypatch.setattr(rayapi, "_IDLE_S", 0.05)
    monkeypatch.setattr(backend_module, "_POLL_S", 0.01)


@pytest.fixture
def ready(root: Path, ray: RayDashboard) -> Cluster:
    """The shared cluster, whose supervisor is this process and whose dashboard is the small one."""
    return make_ready(root, SHARED, ray)


def make_ready(root: Path, request: RayRequest, ray: RayDashboard) -> Cluster:
    found = cluster.start(root, request)
    (found.folder / "token").write_text(ray.token)
    return change(
        found, phase=Phase.READY, supervisor=ProcessId.own(), dashboard=ray.url, slices=RECORD.slices, detail=""
    )


def change(found: Cluster, **changes: object) -> Cluster:
    record = replace(found.record, **changes)  # type: ignore[arg-type]
    state.write(found.folder, record)
    return Cluster(found.folder, record)


@pytest.fixture
def job(tmp_path: Path) -> RayRequest:
    return job_request("train", tmp_path / "it's here", "file:///code.zip", on=SHARED)


async def test_a_cluster_is_accepted_at_once_and_then_watched(backend: SimulatedBackend, root: Path) -> None:
    assert await backend.ensure(SHARED)
    seen = await backend.observe(SHARED)
    assert (seen.cluster, seen.job, seen.facts) == (ClusterState.STARTING, None, {})


async def test_what_never_was_is_absent_and_needs_no_stopping(backend: SimulatedBackend, job: RayRequest) -> None:
    for request, state_of_job in ((SHARED, None), (job, JobState.ABSENT)):
        seen = await backend.observe(request)
        assert (seen.cluster, seen.job) == (ClusterState.ABSENT, state_of_job)
        await backend.stop(request)
        await backend.delete(request)
        assert [line async for line in backend.tail(request)] == []


async def test_a_job_waits_for_its_cluster(backend: SimulatedBackend, tmp_path: Path) -> None:
    own = job_request("train", tmp_path, "file:///code.zip")
    assert not await backend.ensure(own)
    seen = await backend.observe(own)
    assert (seen.cluster, seen.job) == (ClusterState.STARTING, JobState.QUEUED)


async def test_a_job_is_submitted_with_its_request_and_adopted_after_that(
    backend: SimulatedBackend, ready: Cluster, ray: RayDashboard, job: RayRequest
) -> None:
    assert await backend.ensure(job)
    assert await backend.ensure(job)
    assert list(ray.jobs) == [job.name]
    submitted = ray.jobs[job.name]
    uri = job.outbox("request")
    assert shlex.split(submitted["entrypoint"])[-1] == uri
    assert objects.exists(uri)
    assert submitted["runtime_env"] == {"working_dir": job.code}
    assert submitted["metadata"] == {"raytpu.owner": job.identity.owner()}
    seen = await backend.observe(job)
    assert (seen.cluster, seen.job) == (ClusterState.READY, JobState.RUNNING)


async def test_a_word_for_the_shell_is_quoted(
    backend: SimulatedBackend, ready: Cluster, ray: RayDashboard, tmp_path: Path
) -> None:
    storage = f"file://{tmp_path}/$(touch x);'a b'"
    job = replace(job_request("train", tmp_path, "file:///code.zip", on=SHARED), storage=storage)
    await backend.ensure(job)
    command = ray.jobs[job.name]["entrypoint"]
    assert shlex.split(command) == ["python", "-m", "airflow_raytpu.runtime", job.outbox("request")]


async def test_a_job_of_another_owner_is_refused_and_both_are_named(
    backend: SimulatedBackend, ready: Cluster, ray: RayDashboard, job: RayRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await backend.ensure(job)
    shared_name, job_name = SHARED.name, job.name
    monkeypatch.setattr(Identity, "remote_name", lambda self, limit: job_name)
    (ready.folder / "jobs" / job_name).unlink()
    other = replace(job, identity=replace(job.identity, task_id="other"), cluster=shared_name)
    with pytest.raises(ForeignObjectError, match=r"train.*other"):
        await backend.ensure(other)


async def test_a_shared_cluster_that_is_gone_is_lost(
    backend: SimulatedBackend, root: Path, ray: RayDashboard, job: RayRequest
) -> None:
    with pytest.raises(LostError, match=SHARED.name):
        await backend.ensure(job)
    change(make_ready(root, SHARED, ray), supervisor=DEAD)
    with pytest.raises(LostError, match="died"):
        await backend.ensure(job)


async def test_a_cluster_without_a_whole_slice_is_of_no_use(
    backend: SimulatedBackend, ready: Cluster, job: RayRequest
) -> None:
    change(ready, slices=RECORD.with_host(0, 1, alive=False).slices, detail="slice a lost host 1 of 4")
    with pytest.raises(ClusterError, match="lost host 1"):
        await backend.ensure(job)
    seen = await backend.observe(SHARED)
    assert (seen.cluster, seen.detail) == (ClusterState.FAILED, "slice a lost host 1 of 4")


async def test_work_that_was_accepted_on_a_cluster_that_died_is_lost_and_not_begun_anew(
    backend: SimulatedBackend, root: Path, ray: RayDashboard, tmp_path: Path
) -> None:
    own = job_request("train", tmp_path, "file:///code.zip")
    found = make_ready(root, own, ray)
    await backend.ensure(own)
    change(found, supervisor=DEAD)
    assert await backend.ensure(own)
    seen = await backend.observe(own)
    assert (seen.cluster, seen.job) == (ClusterState.ABSENT, JobState.ABSENT)
    assert "died" in seen.detail


async def test_a_job_that_ray_forgot_is_absent(
    backend: SimulatedBackend, ready: Cluster, ray: RayDashboard, job: RayRequest
) -> None:
    assert (await backend.observe(job)).job is JobState.QUEUED
    await backend.ensure(job)
    ray.jobs.clear()
    assert (await backend.observe(job)).job is JobState.ABSENT


async def test_no_answer_is_not_a_state(
    backend: SimulatedBackend, ready: Cluster, ray: RayDashboard, job: RayRequest
) -> None:
    await backend.ensure(job)
    ray.faults = [503] * 20
    seen = await backend.observe(job)
    assert not seen.reachable
    assert "503" in seen.detail


async def test_a_state_that_cannot_be_read_is_failed_and_says_why(
    backend: SimulatedBackend, ready: Cluster, job: RayRequest
) -> None:
    (ready.folder / "state.json").write_text("{")
    seen = await backend.observe(job)
    assert (seen.cluster, seen.job) == (ClusterState.FAILED, JobState.ABSENT)
    assert "state.json" in seen.detail


async def test_looking_is_a_sign_of_life(backend: SimulatedBackend, ready: Cluster, job: RayRequest) -> None:
    for look in (backend.observe(SHARED), backend.observe(job), backend.ensure(SHARED), backend.ensure(job)):
        os.utime(ready.folder / "heartbeat", (1, 1))
        await look
        assert (ready.folder / "heartbeat").stat().st_mtime > 1


async def test_a_job_on_a_shared_cluster_is_stopped_and_deleted_alone(
    backend: SimulatedBackend, ready: Cluster, ray: RayDashboard, job: RayRequest
) -> None:
    await backend.ensure(job)
    await backend.stop(job)
    assert ray.jobs[job.name]["status"] == "STOPPED"
    await backend.delete(job)
    assert ray.jobs == {}
    await backend.delete(job)
    assert (await backend.observe(SHARED)).cluster is ClusterState.READY


async def test_a_cluster_on_its_way_out_is_waited_for(
    backend: SimulatedBackend, ready: Cluster, job: RayRequest
) -> None:
    leaving = change(ready, phase=Phase.STOPPING)
    assert not await backend.ensure(SHARED)
    assert not await backend.ensure(job)
    cluster.discard(leaving.folder)
    assert await backend.ensure(SHARED)


async def test_a_job_without_code_is_refused(backend: SimulatedBackend, ready: Cluster, job: RayRequest) -> None:
    with pytest.raises(RequestError, match="no code"):
        await backend.ensure(replace(job, code=None))


async def test_lines_come_with_the_offset_to_resume_at(
    backend: SimulatedBackend, ready: Cluster, ray: RayDashboard, job: RayRequest
) -> None:
    await backend.ensure(job)
    ray.end(job.name)
    text = "eins\nzwölf\ndrei\n"
    ray.log_batches, ray.logs[job.name] = [text], text
    lines = [line async for line in backend.tail(job)]
    assert [line.text for line in lines] == ["eins", "zwölf", "drei"]
    assert [line.text async for line in backend.tail(job, lines[0].offset)] == ["zwölf", "drei"]
    assert [line async for line in backend.tail(job, lines[-1].offset)] == []


def test_it_is_imported_without_ray() -> None:
    script = "import sys, airflow_raytpu.backends.simulated.backend\n"
    script += "print([n for n in ('ray', 'jax', 'numpy', 'kubernetes', 'airflow') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def host(name: str, worker: int) -> dict[str, object]:
    return {
        "node_id": f"{name}/{worker}",
        "state": "ALIVE",
        "labels": {
            "ray.io/tpu-slice-name": name,
            "ray.io/tpu-worker-id": str(worker),
            "ray.io/tpu-topology": "4x4",
            "ray.io/accelerator-type": "TPU-V6E",
        },
        "resources_total": {"TPU": 4.0},
    }


async def test_its_slices_are_what_ray_lists_and_what_is_due(
    ready: Cluster, ray: RayDashboard, backend: SimulatedBackend
) -> None:
    name = RECORD.slices[0].name
    ray.rows = {"nodes": [host(name, worker) for worker in range(4)]}
    os.utime(ready.folder / "heartbeat", (1, 1))
    (found,) = await backend.slices()
    assert (found.cluster, found.name, found.condition) == (SHARED.name, name, SliceCondition.IDLE)
    assert (ready.folder / "heartbeat").stat().st_mtime == 1, "looking at all is no sign of life"
    assert await backend.slices(SHARED.name) == [found]
    assert (ready.folder / "heartbeat").stat().st_mtime > 1
    ray.rows = {}
    (found,) = await backend.slices(SHARED.name)
    assert (found.shape, found.fault) == ("v6e:4x4", "hosts 0, 1, 2, 3 of 4 missing")


async def test_a_slice_that_is_awaited_is_starting_whatever_ray_lists(
    ready: Cluster, ray: RayDashboard, backend: SimulatedBackend
) -> None:
    (whole,) = RECORD.slices
    awaited = replace(whole, name="etl-cluster-2", awaited="lost host 1 of 4 and is made anew")
    change(ready, slices=(whole, awaited))
    # Two hosts of the new slice are up, and one of the lost slice's is not yet known to be dead.
    rows = [host(whole.name, worker) for worker in range(4)]
    ray.rows = {"nodes": [*rows, host("etl-cluster-2", 0), host("etl-cluster-2", 3), host("etl-cluster-1", 2)]}
    found = await backend.slices(SHARED.name)
    assert [(each.name, each.condition, each.present) for each in found] == [
        ("etl-cluster-0", SliceCondition.IDLE, (0, 1, 2, 3)),
        ("etl-cluster-2", SliceCondition.STARTING, ()),
    ]


async def test_a_cluster_whose_slice_is_made_anew_takes_jobs(
    backend: SimulatedBackend, ready: Cluster, job: RayRequest, ray: RayDashboard
) -> None:
    change(ready, slices=RECORD.with_host(0, 1, alive=False).with_slice(0, awaited="is made anew").slices)
    assert await backend.ensure(job)
    assert list(ray.jobs) == [job.name]
    assert (await backend.observe(SHARED)).cluster is ClusterState.READY


async def test_slices_of_a_cluster_that_comes_up_are_starting(root: Path, backend: SimulatedBackend) -> None:
    cluster.start(root, SHARED, also=["v6e:2x2"])
    found = await backend.slices(SHARED.name)
    assert [(each.name, each.shape, each.condition.value) for each in found] == [
        ("tests-cluster-0", "v6e:4x4", "starting"),
        ("tests-cluster-1", "v6e:2x2", "starting"),
    ]
    assert await backend.slices() == found


async def test_slices_of_a_cluster_that_does_not_answer_are_broken_where_all_are_looked_at(
    ready: Cluster, ray: RayDashboard, backend: SimulatedBackend
) -> None:
    ray.faults = [503] * 100
    (found,) = await backend.slices()
    assert (found.condition, found.fault) == (SliceCondition.BROKEN, "its Ray does not answer")
    with pytest.raises(BackendUnreachable, match="503"):
        await backend.slices(SHARED.name)


@pytest.mark.parametrize("changes", [{"supervisor": DEAD}, {"phase": Phase.STOPPING}, {"phase": Phase.FAILED}, None])
async def test_a_cluster_that_ended_has_no_slices(
    ready: Cluster, backend: SimulatedBackend, changes: dict[str, object] | None
) -> None:
    if changes:
        change(ready, **changes)
    else:
        cluster.discard(ready.folder)
    assert await backend.slices() == []
    with pytest.raises(LostError, match=SHARED.name):
        await backend.slices(SHARED.name)


async def test_a_root_that_holds_other_things_has_no_slices(root: Path, backend: SimulatedBackend) -> None:
    (root / "thesis.txt").touch()
    (root / "other").mkdir()
    assert await backend.slices() == []
