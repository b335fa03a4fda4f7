"""What the place loses begins again inside one try, and costs none of Airflow's retries."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.exceptions import TaskDeferred

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import ClusterError, LostError, UserCodeError
from airflow_raytpu.model.observation import ClusterState, JobState, Observation, Progress
from airflow_raytpu.model.policies import RetryBudget
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.spent import FRUITLESS, Spent
from airflow_raytpu.operators import (
    IterJaxBatchInferenceOperator,
    JaxTrainerOperator,
    RayServeDeployOperator,
    RayTpuClusterOperator,
    RayTpuJobOperator,
)
from airflow_raytpu.storage import objects
from airflow_raytpu.triggers.watch import WatchTrigger
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, failed, ready, running, starting, succeeded

GONE = Observation(cluster=ClusterState.ABSENT, job=JobState.ABSENT, detail="head killed")
DIED = Observation(cluster=ClusterState.READY, job=JobState.FAILED, detail="signal 9")
BROKEN = Observation(cluster=ClusterState.FAILED, job=JobState.QUEUED, detail="host 2 of 4 exited")
LOST = failed(code="RT204", cause="The slice was taken away.")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0")


def train(**more: Any) -> JaxTrainerOperator:
    return JaxTrainerOperator(task_id="train", train_loop="json:dumps", slice="v6e:4x4", deferrable=False, **more)


class Held(ScriptedBackend):
    """Each attempt holds a slice, as its progress says, before what the script has next is seen."""

    def __init__(self, *sights: Any, spent: dict[str, Any] | None = None) -> None:
        super().__init__(sights)
        self.spent = spent or {}

    async def ensure(self, request: RayRequest) -> bool:
        now = time.time()
        told = Progress(request=request.name, phase="training", at=now + 90, slice_at=now, first_at=now)
        objects.write_json(request.outbox("progress"), {**told.to_dict(), "spent": self.spent})
        return await super().ensure(request)


def asked(backend: ScriptedBackend) -> list[RayRequest]:
    """One request for each attempt."""
    return list({request.name: request for request in backend.requests}.values())


def used(request: RayRequest) -> dict[str, Any]:
    return objects.read_json(request.outbox("used"))


@pytest.mark.parametrize("loss", [GONE, DIED, BROKEN, LOST], ids=["gone", "died", "broken", "told"])
async def test_a_loss_is_another_attempt_of_the_same_try(loss, place_with) -> None:
    twice = [loss] * (1 if loss.outcome else 2)  # what comes with its cause is believed at once
    backend = Held(*twice, succeeded({"step": 3}))
    place_with(backend)
    ti = TaskInstance()
    assert await train().aexecute(context(ti)) == {"step": 3}
    first, second = asked(backend)
    assert [each.identity.attempt for each in (first, second)] == [1, 2]
    assert (used(first)["phase"], used(second)["phase"]) == ("LOST", "SUCCEEDED")
    spent = Spent.of(second.arguments)
    assert (spent.evictions, spent.failures, spent.fruitless) == (1, 0, 0)
    assert spent.held_s == pytest.approx(90)
    assert len(spent.causes) == 1
    # What is left of the whole, and a whole slice_wait: a slice has to be found anew.
    assert second.limits.total_until <= first.limits.total_until
    assert second.limits.slice_wait_s == first.limits.slice_wait_s
    assert second.limits.asked_at > first.limits.asked_at


@pytest.mark.parametrize(
    "make",
    [
        lambda **more: RayTpuJobOperator(run="json:dumps", slice="v6e:4x4", **more),
        lambda **more: IterJaxBatchInferenceOperator(
            predict="json:dumps", slice="v6e:4x4", input="/in", output="/out", batch_size=16, **more
        ),
        lambda **more: RayServeDeployOperator(app="json:dumps", cluster="shared", **more),
    ],
    ids=["job", "inference", "serve"],
)
async def test_every_kind_of_job_begins_again(make, place_with, tmp_path) -> None:
    backend = Held(DIED, DIED, succeeded({}))
    place_with(backend)
    (tmp_path / "part.parquet").touch()
    operator = make(task_id="train", deferrable=False)
    operator.input = operator.output_path = str(tmp_path)
    await operator.aexecute(context(TaskInstance()))
    assert [each.identity.attempt for each in asked(backend)] == [1, 2]


async def test_a_deferred_task_that_lost_its_cluster_defers_again(place_with) -> None:
    backend, ti = Held(running(at=time.time()), GONE, GONE, running(at=time.time())), TaskInstance()
    place_with(backend)
    operator = train()
    operator.deferrable = True
    with pytest.raises(TaskDeferred) as first:
        await operator.aexecute(context(ti))
    (event,) = [each async for each in WatchTrigger(**first.value.trigger.serialize()[1]).run()]

    def resumed() -> Any:
        ExecutorSafeguard.tracker.set(operator)
        return operator.finish(context(ti), event=json.loads(json.dumps(event.payload)))

    with pytest.raises(TaskDeferred) as second:
        await asyncio.to_thread(resumed)
    requests = [RayRequest.from_dict(each.value.trigger.request) for each in (first, second)]
    assert [each.identity.attempt for each in requests] == [1, 2]
    assert Spent.of(requests[1].arguments).causes == ("evictions 1: The job is gone from its cluster. head killed",)
    assert second.value.timeout <= first.value.timeout + timedelta(seconds=1)


async def test_what_the_driver_had_spent_itself_counts(place_with) -> None:
    before = Spent().with_eviction("host 3").with_failure("ValueError").to_dict()
    backend = Held(GONE, GONE, succeeded(), spent=before)
    place_with(backend)
    await train(retry_budget=RetryBudget(failures=1, evictions=2)).aexecute(context(TaskInstance()))
    spent = Spent.of(asked(backend)[1].arguments)
    assert (spent.evictions, spent.failures) == (2, 1)
    assert [cause.partition(":")[0] for cause in spent.causes] == ["evictions 1", "failures 1", "evictions 2"]


async def test_the_budget_ends_it(place_with) -> None:
    backend = Held(GONE)
    place_with(backend)
    with pytest.raises(LostError):
        await train(retry_budget=RetryBudget(evictions=4)).aexecute(context(TaskInstance()))
    requests = asked(backend)
    assert len(requests) == 5
    assert [used(each)["phase"] for each in requests] == ["LOST"] * 5
    assert "again" not in used(requests[-1])


async def test_what_never_holds_a_slice_is_no_accident(place_with) -> None:
    backend = ScriptedBackend([BROKEN])
    place_with(backend)
    with pytest.raises(ClusterError, match="host 2 of 4 exited"):
        await train().aexecute(context(TaskInstance()))
    assert len(asked(backend)) == FRUITLESS


async def test_a_retry_of_airflows_has_the_whole_budget_again(place_with) -> None:
    backend = Held(GONE)
    place_with(backend)
    for _ in range(2):
        with pytest.raises(LostError):
            await train(retry_budget=RetryBudget(evictions=1)).aexecute(context(TaskInstance(max_tries=1)))
    spent = [Spent.of(each.arguments).evictions for each in asked(backend)]
    assert spent == [0, 1, 0, 1]


@pytest.mark.parametrize(("cleared", "evictions"), [(False, 1), (True, 0)], ids=["retried", "cleared"])
async def test_a_worker_that_dies_between_two_attempts_loses_no_count(
    cleared, evictions, place_with, monkeypatch
) -> None:
    backend, opened = Held(GONE, GONE, succeeded()), []
    place = place_with(backend)

    def open_once() -> Any:
        if opened:
            raise MemoryError  # stands for the end of the process
        opened.append(backend)
        return backend

    monkeypatch.setattr(place, "open", open_once)
    with pytest.raises(MemoryError):
        await train().aexecute(context(TaskInstance(max_tries=1)))
    monkeypatch.setattr(place, "open", lambda: backend)
    await train().aexecute(context(TaskInstance(max_tries=1 + cleared)))
    first, second = asked(backend)
    assert Spent.of(second.arguments).evictions == evictions
    assert (second.limits.total_until <= first.limits.total_until) is not cleared


async def test_the_authors_error_is_his(place_with) -> None:
    backend = Held(failed())
    place_with(backend)
    with pytest.raises(UserCodeError):
        await train().aexecute(context(TaskInstance()))
    assert len(asked(backend)) == 1


async def test_nothing_begins_after_total(place_with) -> None:
    backend = Held(GONE)
    place_with(backend)
    total = Deadlines(**dict.fromkeys(["slice_wait", "start", "stall", "total"], timedelta(microseconds=1)))
    with pytest.raises(LostError):
        await train(deadlines=total).aexecute(context(TaskInstance()))
    assert len(asked(backend)) == 1


async def test_a_cluster_that_others_share_is_not_begun_again_under_them(place_with) -> None:
    backend = ScriptedBackend([Observation(cluster=ClusterState.FAILED, detail="bad")])
    place_with(backend)
    shared = RayTpuClusterOperator(task_id="train", slice="v6e:4x4", name="team", deferrable=False)
    with pytest.raises(ClusterError):
        await shared.aexecute(context(TaskInstance()))
    assert len(asked(backend)) == 1


async def test_a_cluster_of_the_run_that_is_gone_is_made_anew_by_whoever_needs_it(place_with) -> None:
    backend = ScriptedBackend([ready()])
    place_with(backend)
    handle = await RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4", deferrable=False).aexecute(
        context(TaskInstance(task_id="cluster"))
    )
    (cluster,) = asked(backend)
    backend.requests.clear()
    backend.accepts = [True, LostError("the shared cluster is gone"), True]  # made before, and gone; made anew
    backend.sights = [starting(JobState.QUEUED), succeeded({"step": 3})]
    operator = JaxTrainerOperator(task_id="train", train_loop="json:dumps", cluster=handle, deferrable=False)
    assert (await operator.aexecute(context(TaskInstance())))["step"] == 3
    assert [each.name for each in backend.requests][0::2] == [cluster.name] * 2
    assert [each.identity.attempt for each in asked(backend) if each.kind.is_job] == [1, 2]


async def test_a_cluster_that_cannot_be_seen_to_is_left_to_the_watch(place_with, tmp_path) -> None:
    backend = ScriptedBackend([succeeded({"step": 3})])
    place_with(backend)
    handle = {"cluster": "gone", "slice": "v6e:4x4", "request": (tmp_path / "nothing.json").as_uri()}
    operator = JaxTrainerOperator(task_id="train", train_loop="json:dumps", cluster=handle, deferrable=False)
    assert (await operator.aexecute(context(TaskInstance())))["step"] == 3
