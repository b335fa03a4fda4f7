"""What every backend must do, whatever it runs on. One ready cluster is shared; each test brings its own jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.model.errors import ForeignObjectError, LostError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.slices import SliceCondition, SliceState
from airflow_raytpu.model.verdict import Phase, judge
from airflow_raytpu.storage import objects
from tests.contract.harness import Harness

pytestmark = pytest.mark.cluster


async def submit(backend: Backend, request: RayRequest) -> None:
    async with asyncio.timeout(60):
        while not await backend.ensure(request):
            await asyncio.sleep(0.1)


async def until(
    backend: Backend, request: RayRequest, wanted: Callable[[Observation], bool], within_s: float = 90
) -> Observation:
    async with asyncio.timeout(within_s):
        while True:
            seen = await backend.observe(request)
            if wanted(seen):
                return seen
            await asyncio.sleep(0.1)


async def ended(backend: Backend, request: RayRequest) -> Observation:
    return await until(backend, request, lambda seen: seen.job is not None and seen.job.ended)


async def lines(backend: Backend, request: RayRequest, offset: int = 0) -> list[str]:
    return [line.text async for line in backend.tail(request, offset)]


async def test_a_ready_cluster_is_ready_for_whoever_asks(harness: Harness) -> None:
    assert await harness.backend.ensure(harness.cluster)
    other = harness.open()
    assert await other.ensure(harness.cluster)
    for backend in (harness.backend, other):
        seen = await backend.observe(harness.cluster)
        assert (seen.cluster, seen.job, seen.reachable) == (ClusterState.READY, None, True)
        assert judge(seen, harness.cluster.limits, 0.0).phase is Phase.SUCCEEDED


async def test_a_ready_cluster_tells_what_jobs_need_and_no_secret(harness: Harness) -> None:
    facts = (await harness.backend.observe(harness.cluster)).facts
    assert facts["name"] == harness.cluster.name
    assert {"address", "dashboard", "endpoint"} <= facts.keys()
    assert [(part["hosts"], part["chips"]) for part in facts["slices"]] == [(4, 16)]
    assert "token" not in json.dumps(facts)


async def test_a_job_runs_to_its_result(harness: Harness) -> None:
    job = harness.job(answer=42, lines=3)
    await submit(harness.backend, job)
    seen = await ended(harness.backend, job)
    assert (seen.cluster, seen.job) == (ClusterState.READY, JobState.SUCCEEDED)
    assert seen.outcome is not None
    assert seen.outcome.value == {"answer": 42}
    assert seen.progress is not None
    assert (seen.progress.phase, seen.progress.done) == ("training", 1)
    assert judge(seen, job.limits, 0.0).phase is Phase.SUCCEEDED
    assert objects.read_json(job.outbox("request")) == job.to_dict()
    text = await lines(harness.backend, job)
    assert [line for line in text if line.startswith("zeile")] == [f"zeile {number} ä€" for number in range(3)]
    if harness.backend.name == "simulated":  # elsewhere a cluster is called otherwise from inside
        facts = (await harness.backend.observe(harness.cluster)).facts
        assert any(facts["address"] in line and facts["endpoint"] in line for line in text)


async def test_a_request_made_again_is_the_same_job(harness: Harness) -> None:
    job = harness.job(wait_for=str(harness.scratch / "go"))
    backends = [harness.open() for _ in range(3)]
    await asyncio.gather(*(submit(backend, job) for backend in backends))
    for backend in backends:
        assert await backend.ensure(job)
    await until(harness.backend, job, lambda seen: seen.job is JobState.RUNNING and seen.progress is not None)
    (harness.scratch / "go").touch()
    await ended(harness.backend, job)
    text = await lines(harness.backend, job)
    assert sum(line.startswith("at ") for line in text) == 1
    # Also once it has ended: a success is handed over, not done again.
    for backend in backends:
        assert await backend.ensure(job)
        assert (await backend.observe(job)).job is JobState.SUCCEEDED


async def test_an_owner_cannot_take_anothers_job(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    job = harness.job(wait_for=str(harness.scratch / "go"))
    await submit(harness.backend, job)
    name = job.name
    monkeypatch.setattr(Identity, "remote_name", lambda self, limit: name)
    thief = replace(job, identity=replace(job.identity, deployment="another"))
    with pytest.raises(ForeignObjectError, match="another"):
        await harness.open().ensure(thief)
    assert (await harness.backend.observe(job)).job in {JobState.QUEUED, JobState.RUNNING}


async def test_a_driver_that_fails_leaves_no_result_and_says_how_it_ended(harness: Harness) -> None:
    job = harness.job(exit=7)
    await submit(harness.backend, job)
    seen = await ended(harness.backend, job)
    assert (seen.job, seen.outcome) == (JobState.FAILED, None)
    assert "7" in seen.detail
    assert judge(seen, job.limits, 0.0).phase is Phase.LOST


async def test_a_job_that_is_stopped_is_told_so_first(harness: Harness) -> None:
    job = harness.job(wait_for=str(harness.scratch / "never"))
    await submit(harness.backend, job)
    await until(harness.backend, job, lambda seen: seen.progress is not None)
    await harness.backend.stop(job)
    seen = await harness.backend.observe(job)
    assert (seen.cluster, seen.job) == (ClusterState.READY, JobState.STOPPED)
    assert objects.exists(job.outbox("stopped"))
    await harness.backend.stop(job)


async def test_a_log_is_read_while_it_is_written_and_resumed_where_it_was_left(harness: Harness) -> None:
    go = harness.scratch / "go"
    job = harness.job(lines=30, wait_for=str(go))
    await submit(harness.backend, job)
    read: list[str] = []
    async with asyncio.timeout(60):
        async for line in harness.backend.tail(job):
            read.append(line.text)
            offset = line.offset
            if line.text.startswith("zeile 19"):
                break
    go.touch()
    other = harness.open()
    async with asyncio.timeout(60):
        read += await lines(other, job, offset)
    assert read == await lines(other, job)
    assert [line for line in read if line.startswith("zeile")] == [f"zeile {number} ä€" for number in range(30)]


async def test_a_log_asked_for_too_early_waits_for_its_job(harness: Harness) -> None:
    job = harness.job(lines=1)
    early = asyncio.create_task(lines(harness.open(), job))
    await submit(harness.backend, job)
    async with asyncio.timeout(60):
        assert "zeile 0 ä€" in await early


async def test_what_was_deleted_is_absent_and_its_cluster_stays(harness: Harness) -> None:
    job = harness.job(wait_for=str(harness.scratch / "never"))
    await submit(harness.backend, job)
    await harness.backend.delete(job)
    assert (await harness.backend.observe(job)).job is JobState.ABSENT
    await harness.backend.delete(job)
    assert (await harness.backend.observe(harness.cluster)).cluster is ClusterState.READY


async def test_what_never_was_is_absent(harness: Harness) -> None:
    never = replace(harness.cluster, identity=replace(harness.cluster.identity, task_id="never"))
    assert (await harness.backend.observe(never)).cluster is ClusterState.ABSENT
    await harness.backend.stop(never)
    await harness.backend.delete(never)
    orphan = replace(harness.job(), cluster="no-such-cluster")
    with pytest.raises(LostError, match="no-such-cluster"):
        await harness.backend.ensure(orphan)
    seen = await harness.backend.observe(orphan)
    assert (seen.cluster, seen.job) == (ClusterState.ABSENT, JobState.ABSENT)


async def pictures(backend: Backend, cluster: str, wanted: Callable[[SliceState], bool]) -> SliceState:
    """The one slice of the cluster once it is as *wanted*."""
    async with asyncio.timeout(30):
        while True:
            (state,) = await backend.slices(cluster)
            if wanted(state):
                return state
            await asyncio.sleep(0.1)


async def test_a_slice_is_idle_before_and_after_a_job_and_held_by_it_meanwhile(harness: Harness) -> None:
    backend, name = harness.backend, harness.cluster.name
    before = await pictures(backend, name, lambda state: state.condition is SliceCondition.IDLE)
    assert (before.cluster, before.shape, before.hosts, before.present) == (name, "v6e:4x4", 4, (0, 1, 2, 3))
    assert before.since > 0
    job = harness.job(wait_for=str(harness.scratch / "go"), hold={"topology": "4x4", "accelerator_version": "v6e"})
    await submit(backend, job)
    held = await pictures(backend, name, lambda state: state.condition is SliceCondition.BUSY)
    (holder,) = held.holders
    assert (holder.job, holder.owner) == (job.name, job.identity)
    assert held.since > before.since
    # Seen by whoever looks, and also by who names no cluster.
    other = harness.open()
    assert held.name in [state.name for state in await other.slices() if state.cluster == name]
    (harness.scratch / "go").touch()
    await ended(backend, job)
    after = await pictures(backend, name, lambda state: state.condition is SliceCondition.IDLE)
    assert after == before


async def test_a_cluster_that_never_was_has_no_slices(harness: Harness) -> None:
    with pytest.raises(LostError, match="no-such-cluster"):
        await harness.backend.slices("no-such-cluster")


async def test_a_result_of_another_attempt_is_not_believed(harness: Harness) -> None:
    job = harness.job(exit=7)
    objects.write_json(job.outbox("result"), {"request": "another", "value": {}})
    await submit(harness.backend, job)
    assert (await ended(harness.backend, job)).outcome is None
