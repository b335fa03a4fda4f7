"""The one flow of every operator, against a backend that plays a script."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from datetime import timedelta

import pytest
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTerminated, TaskDeferralError, TaskDeferred

from airflow_raytpu.links import CheckpointLink, RayDashboardLink
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import BackendUnreachable, ClusterError, LostError, StallTimeout, UserCodeError
from airflow_raytpu.model.observation import ClusterState, Fault, JobState, Observation
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.model.spent import FRUITLESS
from airflow_raytpu.model.verdict import judge
from airflow_raytpu.operators import JaxTrainerOperator, RayTpuClusterOperator
from airflow_raytpu.storage import attempts, objects
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, failed, ready, running, starting, succeeded

REFUSED = Observation(cluster=ClusterState.STARTING, fault=Fault(code="RT208", cause="bad image"))
CLUSTER = {"cluster": "dg-cluster-1", "slice": "v6e:4x4", "dashboard": "http://127.0.0.1:8265"}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0")


def trainer(**more):
    settings = {"task_id": "train", "train_loop": "json:dumps", "cluster": CLUSTER, "train_loop_config": {"steps": 3}}
    return JaxTrainerOperator(**{**settings, **more})


def busy():
    return running(at=time.time())


async def run(operator, ti, **more):
    return await operator.aexecute(context(ti, **more))


async def deferral(operator, ti, **more) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        await run(operator, ti, **more)
    return caught.value


def event_of(deferred: TaskDeferred, seen: Observation) -> dict:
    """What the trigger would fire on *seen*, after the way through Airflow's database."""
    request = RayRequest.from_dict(deferred.trigger.request)
    verdict = judge(seen, request.limits, time.time())
    return json.loads(json.dumps({"request": request.outbox("request"), "verdict": verdict.to_dict(), "links": {}}))


def finish(operator, deferred: TaskDeferred, seen: Observation, ti, **more):
    return getattr(operator, deferred.method_name)(context(ti, **more), event=event_of(deferred, seen))


def write_result(request: RayRequest, **fields):
    objects.write_json(request.outbox("result"), Outcome(request=request.name, **fields).to_dict())


def used(request: RayRequest):
    return objects.read_json(request.outbox("used"))


# --- the straight way ------------------------------------------------------------------------------------------------


async def test_deferred_success_returns_the_value_and_uses_the_attempt_up(place_with):
    backend, ti = ScriptedBackend([starting(JobState.QUEUED)]), TaskInstance()
    place_with(backend)
    operator = trainer()
    deferred = await deferral(operator, ti)
    assert backend.verbs() == ["ensure", "observe"]
    assert finish(operator, deferred, succeeded({"step": 3, "checkpoint": "gs://b/c/3"}), ti) == {
        "step": 3,
        "checkpoint": "gs://b/c/3",
    }
    assert used(backend.requests[0])["phase"] == "SUCCEEDED"
    link = CheckpointLink().get_link(operator, ti_key=ti)
    assert link == "https://console.cloud.google.com/storage/browser/b/c/3"


async def test_what_is_deferred_waits_a_little_longer_than_our_own_total(place_with):
    place_with(ScriptedBackend([busy()]))
    deferred = await deferral(trainer(deadlines=Deadlines(total=timedelta(hours=2))), TaskInstance())
    assert timedelta(hours=2) < deferred.timeout < timedelta(hours=2, minutes=5)
    assert deferred.kwargs is None


async def test_not_deferrable_watches_to_the_end_on_the_worker(place_with):
    backend = ScriptedBackend([busy(), busy(), succeeded({"step": 3})])
    place_with(backend)
    assert await run(trainer(deferrable=False), TaskInstance()) == {"step": 3}
    assert backend.verbs("observe") == ["observe"] * 3
    assert backend.closed == 1


async def test_what_has_ended_at_the_first_look_is_not_deferred(place_with):
    place_with(ScriptedBackend([succeeded({"step": 3})]))
    assert await run(trainer(), TaskInstance()) == {"step": 3}


async def test_the_backend_is_asked_for_exactly_what_the_author_said(place_with, tmp_path):
    backend = ScriptedBackend([busy()])
    place = place_with(backend)
    await deferral(trainer(ttl=timedelta(minutes=9)), TaskInstance())
    request = backend.requests[0]
    assert (request.cluster, request.slice, request.ttl_s) == ("dg-cluster-1", "v6e:4x4", 540)
    assert request.storage == f"{place.storage}/digits/train/manual__1"
    assert request.code.startswith(f"{place.storage}/code/")
    assert objects.exists(request.code)
    assert objects.read_json(request.outbox("request")) == request.to_dict()


async def test_the_dashboard_is_linked_right_after_submission(place_with):
    place_with(ScriptedBackend([busy()]))
    ti, operator = TaskInstance(), trainer()
    await deferral(operator, ti)
    assert ti.xcoms == {"_link_RayDashboardLink": "http://127.0.0.1:8265"}
    assert RayDashboardLink().get_link(operator, ti_key=ti) == "http://127.0.0.1:8265"
    assert CheckpointLink().get_link(operator, ti_key=ti) == ""


async def test_a_cluster_returns_what_other_tasks_need(place_with):
    backend, ti = ScriptedBackend([starting()], accepts=[False]), TaskInstance(task_id="cluster")
    place_with(backend)
    operator = RayTpuClusterOperator(task_id="cluster", slice="v6e-16")
    deferred = await deferral(operator, ti)
    value = finish(operator, deferred, ready(dashboard="http://d", address="a:1", endpoint="http://e", slices=[1]), ti)
    assert value == {
        "cluster": backend.requests[0].name,
        "slice": "v6e:4x4",
        "address": "a:1",
        "dashboard": "http://d",
        "endpoint": "http://e",
        "slices": [1],
        "request": backend.requests[0].outbox("request"),
    }
    assert used(backend.requests[0]) is None, "a retry adopts a cluster while it lives"


@pytest.mark.parametrize("seen", [ready(), REFUSED], ids=["success", "failure"])
async def test_once_airflow_has_the_end_a_late_kill_finds_nobody_to_obey(seen, place_with):
    backend, ti = ScriptedBackend([starting()]), TaskInstance(task_id="cluster")
    place_with(backend)
    operator = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
    deferred = await deferral(operator, ti)
    assert attempts.is_owned_by(backend.requests[0], ti.id)
    with contextlib.suppress(ClusterError):
        finish(operator, deferred, seen, ti)
    assert not attempts.is_owned_by(backend.requests[0], ti.id)


async def test_a_retry_adopts_a_cluster_that_lives(place_with):
    backend, ti = ScriptedBackend([starting()]), TaskInstance(task_id="cluster", max_tries=1)
    place_with(backend)
    operator = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
    finish(operator, await deferral(operator, ti), ready(), ti)
    backend.sights = [ready()]
    await run(operator, TaskInstance(task_id="cluster", max_tries=1))
    assert backend.requests[0] == backend.requests[1]
    await run(operator, TaskInstance(task_id="cluster", max_tries=2))
    assert backend.verbs("stop") == ["stop"], "cleared: the old cluster gives its slice to the new one"
    assert backend.requests[2].identity.attempt == 2


# --- failures --------------------------------------------------------------------------------------------------------


async def test_the_authors_traceback_ends_the_error(place_with):
    frames = 'File "digits/train.py", line 58, in loop\nValueError: labels out of range: 10'
    place_with(ScriptedBackend([failed("loop raised ValueError on rank 3.", traceback=frames)]))
    with pytest.raises(UserCodeError) as caught:
        await run(trainer(), TaskInstance())
    lines = str(caught.value).splitlines()
    assert lines[0] == "loop raised ValueError on rank 3.  [RT301]"
    assert lines[-1] == "ValueError: labels out of range: 10"


async def test_a_failed_attempt_is_used_up_and_the_retry_is_a_new_one(place_with):
    backend = ScriptedBackend([failed()])
    place_with(backend)
    for _ in range(2):
        with pytest.raises(UserCodeError):
            await run(trainer(), TaskInstance(max_tries=1))
    first, second = backend.requests
    assert (first.identity.attempt, second.identity.attempt) == (1, 2)
    assert first.name != second.name
    assert first.storage == second.storage


async def test_a_deadline_becomes_its_error_after_the_work_was_stopped(place_with):
    backend = ScriptedBackend([running(at=time.time() - 100)])
    place_with(backend)
    with pytest.raises(StallTimeout, match="stall is 0 s"):
        await run(trainer(deferrable=False, deadlines=Deadlines(stall=timedelta(milliseconds=20))), TaskInstance())
    assert backend.verbs("stop") == ["stop"]


async def test_our_deadline_comes_before_airflows_timeout(place_with):
    backend = ScriptedBackend([busy()])
    place_with(backend)
    await deferral(trainer(execution_timeout=timedelta(minutes=30)), TaskInstance())
    assert backend.requests[0].limits.total_s == 30 * 60 - 60


async def test_a_wrong_request_fails_for_good_and_starts_nothing(place_with, tmp_path):
    backend = ScriptedBackend([busy()])
    place_with(backend)
    operator = trainer(datasets={"train": str(tmp_path / "missing")})
    with pytest.raises(AirflowFailException, match=r"missing does not exist\.[\s\S]*RT103"):
        await run(operator, TaskInstance())
    assert backend.calls == []


async def test_storage_that_cannot_be_written_is_refused_before_anything_is_started(place_with, tmp_path):
    backend = ScriptedBackend([busy()])
    place_with(backend)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AirflowFailException, match=r"cannot be written: Not a directory[\s\S]*storage_path"):
        await run(trainer(storage_path=str(tmp_path / "file" / "below")), TaskInstance())
    assert backend.calls == []


async def test_trouble_at_submission_is_left_to_the_trigger(place_with):
    place_with(ScriptedBackend([BackendUnreachable("refused")], accepts=[BackendUnreachable("refused")]))
    await deferral(trainer(), TaskInstance())


async def test_a_lost_cluster_is_an_error_that_airflow_retries(place_with):
    place_with(ScriptedBackend([starting()], accepts=[LostError("cluster dg-cluster-1 is gone", "clear its task")]))
    with pytest.raises(LostError, match="dg-cluster-1 is gone"):
        await run(trainer(), TaskInstance())


# --- which attempt ---------------------------------------------------------------------------------------------------


async def test_a_retry_after_a_lost_worker_adopts_the_running_attempt_as_it_was_submitted(place_with):
    backend = ScriptedBackend([busy()])
    place_with(backend)
    await deferral(trainer(), TaskInstance(max_tries=1))
    await deferral(trainer(train_loop_config={"steps": 999}), TaskInstance(max_tries=1))
    first, second = backend.requests
    assert first == second


async def test_a_retry_owns_what_it_adopts(place_with):
    backend = ScriptedBackend([busy()])
    place_with(backend)
    old, new = TaskInstance(max_tries=1), TaskInstance(max_tries=1)
    await deferral(trainer(), old)
    await deferral(trainer(), new)
    assert attempts.is_owned_by(backend.requests[0], new.id)
    assert not attempts.is_owned_by(backend.requests[0], old.id)


async def test_a_success_that_airflow_never_received_is_handed_over_and_not_redone(place_with):
    backend = ScriptedBackend([busy()])
    place_with(backend)
    await deferral(trainer(), TaskInstance(max_tries=1))
    write_result(backend.requests[0], value={"step": 3})
    backend.calls.clear()
    assert await run(trainer(), TaskInstance(max_tries=1)) == {"step": 3}
    assert backend.calls == []


async def test_a_worker_that_dies_after_marking_its_success_loses_nothing(place_with):
    backend, ti = ScriptedBackend([busy()]), TaskInstance(max_tries=1)
    place_with(backend)
    operator = trainer()
    deferred = await deferral(operator, ti)
    write_result(backend.requests[0], value={"step": 3})
    finish(operator, deferred, succeeded({"step": 3}), ti)
    backend.calls.clear()
    assert await run(trainer(), TaskInstance(max_tries=1)) == {"step": 3}
    assert backend.calls == []


@pytest.mark.parametrize(
    "again", [{"max_tries": 2}, {"started": "2026-11-30T10:00"}], ids=["cleared", "the run was made anew"]
)
async def test_a_success_that_was_handed_over_is_redone_when_airflow_wishes_it_again(again, place_with):
    backend, ti = ScriptedBackend([busy()]), TaskInstance()
    place_with(backend)
    operator = trainer()
    deferred = await deferral(operator, ti)
    write_result(backend.requests[0], value={"step": 3})
    finish(operator, deferred, succeeded({"step": 3}), ti)
    again = dict(again)
    await deferral(trainer(), TaskInstance(max_tries=again.pop("max_tries", 0)), **again)
    assert [request.identity.attempt for request in backend.requests] == [1, 2]


async def test_clearing_a_running_task_ends_its_attempt_and_begins_another(place_with):
    backend = ScriptedBackend([busy()])
    place_with(backend)
    await deferral(trainer(), TaskInstance(max_tries=0))
    await deferral(trainer(), TaskInstance(max_tries=1))
    assert backend.verbs("ensure", "stop") == ["ensure", "stop", "ensure"]
    assert used(backend.requests[0])["phase"] == "CLEARED"
    assert backend.requests[1].identity.attempt == 2


async def test_a_failure_that_airflow_never_heard_of_does_not_cost_a_try(place_with):
    backend = ScriptedBackend([busy()])
    place_with(backend)
    await deferral(trainer(), TaskInstance(max_tries=1))
    write_result(backend.requests[0], code="RT301", cause="loop raised")
    await deferral(trainer(), TaskInstance(max_tries=1))
    assert backend.requests[1].identity.attempt == 2


async def test_a_result_of_another_attempt_proves_nothing(place_with):
    backend = ScriptedBackend([busy()])
    place_with(backend)
    await deferral(trainer(), TaskInstance(max_tries=1))
    objects.write_json(backend.requests[0].outbox("result"), Outcome(request="another").to_dict())
    await deferral(trainer(), TaskInstance(max_tries=1))
    assert backend.requests[1] == backend.requests[0]


# --- the end of a task from outside ----------------------------------------------------------------------------------


async def kill_while_watching(operator, ti, backend):
    working = asyncio.ensure_future(run(operator, ti))
    while not backend.verbs("observe"):
        await asyncio.sleep(0.001)
    operator.on_kill()
    with pytest.raises(AirflowTaskTerminated):
        await working


@pytest.mark.parametrize("state", ["failed", "success", "restarting", "skipped", None])
async def test_a_kill_by_a_user_stops_the_work(state, place_with, airflow_says):
    backend = ScriptedBackend([busy()])
    place_with(backend)
    airflow_says(state)
    await kill_while_watching(trainer(deferrable=False), TaskInstance(), backend)
    assert backend.verbs("stop") == ["stop"]
    assert used(backend.requests[0])["phase"] == "KILLED"


@pytest.mark.parametrize("state", ["scheduled", "queued", "running", "deferred", "up_for_retry", ""])
async def test_a_reset_of_an_orphan_leaves_the_work_to_the_next_try(state, place_with, airflow_says):
    backend = ScriptedBackend([busy()])
    place_with(backend)
    airflow_says(state)
    await kill_while_watching(trainer(deferrable=False), TaskInstance(), backend)
    assert backend.verbs("stop") == []
    assert used(backend.requests[0]) is None


async def test_a_kill_before_anything_was_asked_for_has_nothing_to_stop(place_with):
    backend = ScriptedBackend([busy()])
    place_with(backend)
    operator = trainer(deferrable=False)
    operator.on_kill()
    assert backend.calls == []


async def test_a_trigger_that_failed_hands_the_watch_to_the_worker(place_with):
    backend, ti = ScriptedBackend([busy()]), TaskInstance()
    place_with(backend)
    operator = trainer()
    await deferral(operator, ti)
    backend.sights = [succeeded({"step": 3})]

    def resumed():
        ExecutorSafeguard.tracker.set(operator)
        return operator.resume_execution("__fail__", {"error": "Trigger failure"}, context(ti))

    assert await asyncio.to_thread(resumed) == {"step": 3}
    assert len({request.name for request in backend.requests}) == 1


async def test_a_deferral_that_airflow_timed_out_ends_the_work(place_with):
    backend, ti = ScriptedBackend([busy()]), TaskInstance()
    place_with(backend)
    operator = trainer(
        deadlines=Deadlines(*(), **dict.fromkeys(["slice_wait", "start", "stall", "total"], timedelta(0.001)))
    )
    await deferral(operator, ti)
    request = backend.requests[0]
    past = {**request.to_dict(), "limits": {**request.limits.to_dict(), "asked_at": time.time() - 3600}}
    objects.write_json(request.outbox("request"), past)

    def resumed():
        ExecutorSafeguard.tracker.set(operator)
        operator.resume_execution("__fail__", {"error": "Trigger timeout"}, context(ti))

    with pytest.raises(Exception, match=r"Not finished within .* \(total\)"):
        await asyncio.to_thread(resumed)
    assert backend.verbs("stop") == ["stop"]


def test_airflow_raises_what_the_lifecycle_catches():
    operator = trainer()
    with pytest.raises(TaskDeferralError):
        super(JaxTrainerOperator.__mro__[1], operator).resume_execution("__fail__", {"error": "x"}, {})


async def test_a_cluster_is_stopped_where_it_never_came_up(place_with):
    broken = Observation(cluster=ClusterState.FAILED, detail="host 2 of 4 exited")
    backend = ScriptedBackend([broken])
    place_with(backend)
    with pytest.raises(Exception, match="host 2 of 4 exited"):
        await run(
            RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4", deferrable=False), TaskInstance(task_id="cluster")
        )
    stopped = [name for verb, name in backend.calls if verb == "stop"]
    assert stopped == list(dict.fromkeys(request.name for request in backend.requests))
    assert len(stopped) == FRUITLESS
