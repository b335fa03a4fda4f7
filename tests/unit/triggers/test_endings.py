"""How a watch ends, and what it leaves behind then."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import BackendUnreachable, LostError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.model.verdict import Phase, Verdict
from airflow_raytpu.storage import attempts, objects
from airflow_raytpu.triggers import ownership
from airflow_raytpu.triggers.watch import WatchTrigger
from airflow_raytpu.triggers.watching import watch
from tests.doubles.airflow_side import TaskInstance
from tests.doubles.scripted import Clock, Lines, ScriptedBackend, running, succeeded

NO_ANSWER = BackendUnreachable("HTTP 500")


@pytest.fixture
def own(tmp_path: Path) -> RayRequest:
    """A job with a cluster of its own."""
    return RayRequest(
        identity=Identity(deployment="d", dag_id="digits", task_id="train", run_id="manual__1"),
        kind=Kind.TRAIN,
        slice="v6e:4x4",
        storage=f"file://{tmp_path}/storage/digits",
        limits=Deadlines().since(time.time()),
    )


async def seen(backend: ScriptedBackend, of: RayRequest) -> tuple[Verdict, Lines]:
    clock = Clock(of.limits.asked_at)
    lines = Lines(clock)
    return await watch(backend, of, log=lines, poll_s=1.0, now=clock, sleep=clock.sleep), lines


def at_work(of: RayRequest) -> Observation:
    return running(at=of.limits.asked_at)


async def test_a_success_whose_cluster_cannot_be_deleted_is_a_success(own: RayRequest) -> None:
    verdict, lines = await seen(ScriptedBackend([at_work(own), succeeded({"step": 3})], stops=[NO_ANSWER]), own)
    assert (verdict.phase, verdict.value) == (Phase.SUCCEEDED, {"step": 3})
    assert lines.texts("warning")[-1] == f"{own.name} is left to its time to live, {own.ttl_s:.0f} s."


async def test_whatever_keeps_a_cluster_from_being_deleted_the_verdict_stands(own: RayRequest) -> None:
    verdict, lines = await seen(ScriptedBackend([succeeded({"step": 3})], stops=[OSError("disk full")]), own)
    assert (verdict.phase, verdict.value) == (Phase.SUCCEEDED, {"step": 3})
    assert lines.texts("warning")[-1] == f"{own.name} is left to its time to live, {own.ttl_s:.0f} s."


async def test_a_stop_that_gets_no_answer_is_told_of_every_minute_and_its_last_try_is_the_end(own: RayRequest) -> None:
    class Hanging(ScriptedBackend):
        async def stop(self, request: RayRequest) -> None:
            await super().stop(request)
            clock.at += 45.0
            raise TimeoutError

    clock = Clock(own.limits.asked_at)
    lines = Lines(clock)
    backend = Hanging([succeeded()])
    await watch(backend, own, log=lines, poll_s=1.0, now=clock, sleep=clock.sleep)
    times = [clock.began, *[at for at, _, _ in lines.kept], clock()]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 60
    assert len(backend.verbs("stop")) == len([text for text in lines.texts("warning") if "TimeoutError" in text]) > 1
    assert times[-2] == clock(), "after the last try nobody waits any more"


GONE = {
    "cluster deleted": Observation(cluster=ClusterState.ABSENT, job=JobState.ABSENT),
    "job removed": Observation(cluster=ClusterState.READY, job=JobState.ABSENT),
    "cluster lost": Observation(cluster=ClusterState.ABSENT, job=JobState.RUNNING),
    "cluster broken": Observation(cluster=ClusterState.FAILED, job=JobState.RUNNING),
}


@pytest.mark.parametrize("gone", GONE.values(), ids=GONE)
async def test_a_success_of_what_is_gone_is_handed_over(own: RayRequest, gone: Observation) -> None:
    """Its triggerer freed the cluster, or was down until the job's own time was over, and Airflow heard nothing."""
    with_result = replace(gone, outcome=Outcome(request=own.name, value={"step": 3}))
    verdict, _ = await seen(ScriptedBackend([with_result]), own)
    assert (verdict.phase, verdict.value) == (Phase.SUCCEEDED, {"step": 3})
    failed_ = replace(gone, outcome=Outcome(request=own.name, code="RT301", cause="loop raised."))
    verdict, _ = await seen(ScriptedBackend([failed_]), own)
    assert (verdict.phase, verdict.code) == (Phase.FAILED, "RT301")
    verdict, _ = await seen(ScriptedBackend([gone]), own)
    assert verdict.phase is Phase.LOST


@pytest.mark.parametrize("gone", GONE.values(), ids=GONE)
async def test_what_served_and_is_gone_is_lost_whatever_its_rollout_said(own: RayRequest, gone: Observation) -> None:
    with_result = replace(gone, outcome=Outcome(request=own.name, value={}))
    verdict, _ = await seen(ScriptedBackend([with_result]), replace(own, kind=Kind.SERVE, cluster="shared"))
    assert verdict.phase is Phase.LOST


async def test_a_job_that_says_it_failed_is_no_success_whatever_lies_in_storage(own: RayRequest) -> None:
    said = Observation(cluster=ClusterState.ABSENT, job=JobState.FAILED, outcome=Outcome(request=own.name, value={}))
    verdict, _ = await seen(ScriptedBackend([said]), own)
    assert verdict.phase is Phase.LOST


async def test_a_success_on_a_shared_cluster_that_is_gone_is_handed_over(own: RayRequest) -> None:
    shared, gone = replace(own, cluster="shared"), LostError("cluster shared is gone")
    result = Outcome(request=shared.name, value={"step": 3})
    objects.write_json(shared.outbox("result"), replace(result, request="another").to_dict())
    verdict, _ = await seen(ScriptedBackend(accepts=[gone]), shared)
    assert (verdict.phase, verdict.code) == (Phase.LOST, "RT204")
    objects.write_json(shared.outbox("result"), result.to_dict())
    verdict, _ = await seen(ScriptedBackend(accepts=[gone]), shared)
    assert (verdict.phase, verdict.value) == (Phase.SUCCEEDED, {"step": 3})


async def test_a_trigger_that_ends_while_it_frees_the_cluster_leaves_the_success_to_the_next(
    own: RayRequest, place_with, monkeypatch
) -> None:
    class Freed(ScriptedBackend):
        """Its cluster takes its time to go."""

        async def stop(self, request: RayRequest) -> None:
            await super().stop(request)
            self.sights = [replace(GONE["cluster deleted"], outcome=Outcome(request=request.name, value={"step": 3}))]
            await asyncio.sleep(0 if len(self.verbs("stop")) > 1 else 1000)

    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0")
    backend, ti = Freed([succeeded({"step": 3})]), TaskInstance()
    place_with(backend)
    attempts.take(own, ti.id, "g")
    first, second = (WatchTrigger(own.to_dict(), "raytpu_default") for _ in range(2))
    first._task_instance = second._task_instance = ti
    task = asyncio.ensure_future(anext(first.run()))
    async with asyncio.timeout(30):
        while not backend.verbs("stop"):
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    (event,) = [event async for event in second.run()]
    verdict = event.payload["verdict"]
    assert (verdict["phase"], verdict["value"]) == ("SUCCEEDED", {"step": 3})


@pytest.mark.parametrize("job", [JobState.FAILED, JobState.ABSENT])
async def test_a_job_that_is_over_for_one_look_only_goes_on(own: RayRequest, job: JobState) -> None:
    """Without a result of its own: Ray has it so before its driver is there, and a list that lags behind shows none."""
    gone = Observation(cluster=ClusterState.READY, job=job)
    for shared in (own, replace(own, cluster="shared")):
        backend = ScriptedBackend([at_work(own), gone, at_work(own), gone, at_work(own), succeeded()])
        verdict, _ = await seen(backend, shared)
        assert verdict.phase is Phase.SUCCEEDED
        assert backend.verbs("ensure") == ["ensure"], "nothing is submitted again"
        twice, _ = await seen(ScriptedBackend([at_work(own), gone, gone]), shared)
        assert (twice.phase, twice.code) == (Phase.LOST, "RT204")


async def test_a_cluster_that_is_gone_for_one_look_only_goes_on(own: RayRequest) -> None:
    gone = Observation(cluster=ClusterState.ABSENT, job=JobState.RUNNING)
    verdict, _ = await seen(ScriptedBackend([at_work(own), gone, at_work(own), succeeded()]), own)
    assert verdict.phase is Phase.SUCCEEDED
    verdict, _ = await seen(ScriptedBackend([at_work(own), gone]), own)
    assert (verdict.phase, verdict.code) == (Phase.LOST, "RT204")


async def test_its_slice_is_free_before_airflow_hears_of_the_end(own: RayRequest, place_with, monkeypatch) -> None:
    """However long the task then waits for a worker."""
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0")
    backend, ti = ScriptedBackend([running(at=time.time()), succeeded({"step": 3})]), TaskInstance()
    place_with(backend)
    attempts.take(own, ti.id, "g")
    trigger = WatchTrigger(own.to_dict(), "raytpu_default")
    trigger._task_instance = ti
    async for event in trigger.run():
        assert event.payload["verdict"]["phase"] == "SUCCEEDED"
        assert backend.verbs("stop") == ["stop"]


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed", "upstream_failed", None])
async def test_work_that_airflow_no_longer_waits_for_is_stopped(
    state: str | None, own: RayRequest, place_with, airflow_says, monkeypatch
) -> None:
    """A cancelled backfill, a task taken out of its DAG, a deleted run: whatever Airflow does with its triggers."""
    monkeypatch.setattr(ownership, "LOOK_EVERY_S", 0)
    monkeypatch.setattr(ownership, "_CONFIRM_S", 0)
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0.001")
    backend, ti = ScriptedBackend([running(at=time.time())]), TaskInstance()
    place_with(backend)
    airflow_says(state)
    attempts.take(own, ti.id, "g")
    trigger = WatchTrigger(own.to_dict(), "raytpu_default")
    trigger._task_instance = ti
    task = asyncio.ensure_future(anext(trigger.run()))
    async with asyncio.timeout(30):
        while not backend.verbs("stop"):
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait({task})
    assert backend.verbs("stop") == ["stop"]
    assert objects.read_json(own.outbox("used"))["phase"] == "KILLED"


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"owner": 1}', '{"offset": "7"}', "\x00"])
async def test_a_note_of_the_place_in_the_log_that_was_cut_off_begins_the_log_anew(text: str, own: RayRequest) -> None:
    ti = TaskInstance()
    trigger = WatchTrigger(own.to_dict(), "raytpu_default")
    trigger._task_instance = ti
    objects.write_json(own.outbox("tail"), {"owner": ti.id, "offset": 7})
    assert await trigger._offset(own) == 7
    objects.write_bytes(own.outbox("tail"), text.replace("1", json.dumps(ti.id)).encode())
    assert await trigger._offset(own) == 0
