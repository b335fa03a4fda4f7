"""Trouble on a request's way on Kubernetes: no wrong verdict, nothing twice, nothing left behind, no silence.

From the watch down to the API server; minutes pass in moments.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_raytpu.backends import outbox
from airflow_raytpu.model.request import Kind
from airflow_raytpu.model.verdict import Phase, Verdict
from airflow_raytpu.triggers import watching
from tests.doubles.kubernetes.trouble import Fault
from tests.faults.kuberay_stage import DASHBOARD_PORT, MOMENTS, QUIET_S, Stage, staged, storage_is_down

FAULTS: list[Fault] = [429, 500, 503, "reset", "hang", "drop", "cut"]
USED = [
    *itertools.product(("create", "delete"), ("rayjobs",)),
    *itertools.product(("get", "list", "watch"), ("rayjobs", "rayclusters")),
    *itertools.product(("list", "watch"), ("pods", "events")),
    ("patch", "rayclusters"),
    ("get", "secrets"),
    ("get", "services/proxy"),
]
"""What the backend asks for on the way of a job with a cluster of its own."""


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with staged(tmp_path, monkeypatch) as made:
        yield made


async def it_ended_well(stage: Stage, verdict: Verdict) -> None:
    assert (verdict.phase, verdict.value) == (Phase.SUCCEEDED, {"step": 7}), verdict
    await it_left_nothing(stage)


async def it_left_nothing(stage: Stage) -> None:
    assert len(stage.uids) == 1
    assert stage.longest_silence() <= QUIET_S
    stage.k.heal()
    stage.operator = True
    await stage.nothing_is_left()


# The API server.


@pytest.mark.parametrize(("verb", "resource"), USED)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_call_that_fails_at_every_step_changes_nothing(
    stage: Stage, fault: Fault, verb: str, resource: str
) -> None:
    def fail() -> None:
        stage.k.heal()
        stage.k.fail(verb, resource, fault, times=2)

    fail()
    for seconds in MOMENTS.values():
        stage.at(seconds, fail)
    stage.story()
    stage.at(MOMENTS["finishing"], lambda: stage.k.cut_watches("reset"))
    await it_ended_well(stage, await stage.watch(stage.open()))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_when_all_calls_fail_for_a_while_it_goes_on_afterwards(stage: Stage, fault: Fault, moment: str) -> None:
    begin = MOMENTS[moment] - 1
    stage.at(begin, lambda: stage.k.fail("*", "*", fault, times=None))
    stage.at(begin, lambda: stage.k.cut_watches("reset"))
    stage.at(begin + 20, stage.k.heal)
    if moment == "created":
        stage.k.fail("*", "*", fault, times=None)
    stage.story()
    await it_ended_well(stage, await stage.watch(stage.open()))


@pytest.mark.parametrize("moment", ["waiting", "running", "finishing"])
async def test_an_outage_of_20_s_is_no_verdict(stage: Stage, moment: str) -> None:
    stage.at(MOMENTS[moment] + 5, stage.k.stop)
    stage.at(MOMENTS[moment] + 25, stage.k.start)
    stage.story()
    await it_ended_well(stage, await stage.watch(stage.open()))


async def test_an_outage_of_minutes_while_it_runs_is_no_verdict(stage: Stage) -> None:
    stage.story("running")
    stage.at(100, stage.k.stop)
    stage.at(500, stage.k.start)
    stage.at(510, stage.succeeds)
    await it_ended_well(stage, await stage.watch(stage.open()))


@pytest.mark.parametrize("how", ["end", "reset", "expire", "hang", "error"])
async def test_a_watch_may_end_in_any_way_at_any_time(stage: Stage, how: str) -> None:
    def end() -> None:
        if how == "expire":
            stage.k.compact()
        elif how == "error":
            stage.k.fail("watch", "*", 410, times=3)
        stage.k.cut_watches("hang" if how == "hang" else "reset" if how == "reset" else "end")

    for seconds in range(10, 160, 10):
        stage.at(seconds, end)
    stage.story()
    # A watch that is dead and says nothing is found out by its silence; until then it is the last word.
    stage.at(MOMENTS["over"] + 1, lambda: stage.k.cut_watches("reset"))
    await it_ended_well(stage, await stage.watch(stage.open()))


async def test_a_slow_answer_is_said_aloud(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "QUIET_S", 1.0)
    monkeypatch.setattr(watching, "_PAUSE_S", 1.0)
    backend = stage.open()
    asked = backend.observe

    async def slow(request: Any) -> Any:
        await asyncio.sleep(1.2 if not stage.jobs()[0].get("status") else 0)
        return await asked(request)

    monkeypatch.setattr(backend, "observe", slow)
    stage.story()
    await it_ended_well(stage, await stage.watch(backend))
    assert "the backend has not answered yet" in stage.lines.texts("info")


# Storage.


@pytest.mark.parametrize("what", ["submitted", "note_submitted", "write_request", "read"])
async def test_storage_that_does_not_answer_for_a_while_changes_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    answers = getattr(outbox, what)
    monkeypatch.setattr(outbox, what, storage_is_down)
    stage.at(45, lambda: monkeypatch.setattr(outbox, what, answers))
    stage.story()
    await it_ended_well(stage, await stage.watch(stage.open()))


async def test_storage_that_never_answers_ends_it_with_that_cause(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "submitted", storage_is_down)
    verdict = await stage.watch(stage.open())
    assert verdict.code == "RT201"
    assert "Not submitted within 20 min (slice_wait): file:///storage does not answer." in verdict.message
    assert not stage.uids
    assert stage.longest_silence() <= QUIET_S


# What is done to its objects.


@pytest.mark.parametrize("moment", ["taken", "waiting", "ready", "running"])
async def test_a_job_that_is_deleted_by_hand_is_lost(stage: Stage, moment: str) -> None:
    stage.story("running")
    stage.at(MOMENTS[moment] + 5, lambda: stage.k.remove("rayjobs", stage.request.name))
    verdict = await stage.watch(stage.open())
    assert (verdict.phase, verdict.code) == (Phase.LOST, "RT204")
    await it_left_nothing(stage)


async def test_a_cluster_that_is_deleted_under_a_running_job_is_a_loss(stage: Stage) -> None:
    stage.story("running")
    stage.at(100, lambda: stage.k.remove("rayclusters", stage.controller.cluster()["metadata"]["name"]))
    verdict = await stage.watch(stage.open())
    assert (verdict.phase, verdict.code) == (Phase.LOST, "RT204")
    await it_left_nothing(stage)


async def test_a_cluster_that_is_replaced_before_the_job_runs_is_none(stage: Stage) -> None:
    stage.story("ready")
    stage.at(65, stage.controller.retries)
    for seconds, step in ((75, "provisioning"), (85, "starting")):
        stage.at(seconds, lambda step=step: stage.steps(step))
    for seconds, work in ((95, stage.comes_up), (105, stage.runs), (150, stage.succeeds)):
        stage.at(seconds, work)
    await it_ended_well(stage, await stage.watch(stage.open()))


async def test_a_head_that_is_lost_is_a_loss_and_names_the_head(stage: Stage) -> None:
    stage.story("running")
    stage.at(100, stage.controller.head_is_lost)
    verdict = await stage.watch(stage.open())
    assert (verdict.phase, verdict.code) == (Phase.LOST, "RT204")
    assert "head pod was lost" in verdict.message
    await it_left_nothing(stage)


async def test_a_job_that_is_suspended_by_hand_waits_until_it_goes_on(stage: Stage) -> None:
    stage.story("taken")
    stage.at(20, stage.controller.is_queued)
    stage.at(400, stage.controller.is_admitted)
    for seconds, step in ((410, "provisioning"), (420, "starting")):
        stage.at(seconds, lambda step=step: stage.steps(step))
    for seconds, work in ((430, stage.comes_up), (440, stage.runs), (480, stage.succeeds)):
        stage.at(seconds, work)
    await it_ended_well(stage, await stage.watch(stage.open()))
    assert any("suspended" in line for line in stage.lines.texts("info"))


async def test_labels_that_are_edited_away_do_not_hide_it(stage: Stage) -> None:
    stage.story()
    bare = {"metadata": {"labels": {"airflow-raytpu/deployment": None, "airflow-raytpu/request": None}}}
    stage.at(45, lambda: stage.k.edit("rayjobs", stage.request.name, bare))
    await it_ended_well(stage, await stage.watch(stage.open()))


# KubeRay.


async def test_an_operator_that_is_down_for_long_is_waited_for_and_said(stage: Stage) -> None:
    stage.operator = False

    def back() -> None:
        stage.operator = True

    stage.at(600, back)
    for seconds, step in ((610, "provisioning"), (620, "starting")):
        stage.at(seconds, lambda step=step: stage.steps(step))
    for seconds, work in ((630, stage.comes_up), (640, stage.runs), (680, stage.succeeds)):
        stage.at(seconds, work)
    await it_ended_well(stage, await stage.watch(stage.open()))
    assert any("no word from the KubeRay operator" in line for line in stage.lines.texts("info"))


@pytest.mark.parametrize("dies_at", [MOMENTS["ready"] + 5, MOMENTS["running"] + 5])
async def test_a_result_is_taken_though_kuberay_never_says_so(stage: Stage, dies_at: float) -> None:
    def dies() -> None:
        stage.operator = False

    stage.story()
    stage.at(dies_at, dies)
    verdict = await stage.watch(stage.open())
    assert stage.elapsed <= MOMENTS["finishing"] + 30
    await it_ended_well(stage, verdict)


async def test_success_without_its_result_is_none(stage: Stage) -> None:
    stage.story("running")
    stage.at(130, lambda: stage.steps("succeeded"))
    verdict = await stage.watch(stage.open())
    assert (verdict.phase, verdict.code) == (Phase.FAILED, "RT302")
    await it_left_nothing(stage)


# Processes.


async def test_a_job_that_ended_while_nobody_watched_is_handed_over(stage: Stage) -> None:
    first = stage.open()
    assert await first.ensure(stage.request)
    await first.close()
    stage.take_stock()
    for work in (stage.comes_up, stage.runs, stage.succeeds):
        await work()
    await stage.steps("cleaned")
    stage.clock.at += 3600
    stage.lines.clock.began = stage.clock.began = stage.clock.at
    await it_ended_well(stage, await stage.watch(stage.open()))


async def test_a_job_whose_end_airflow_was_not_told_is_handed_over_though_its_objects_are_gone(stage: Stage) -> None:
    stage.story()
    told_nobody = await stage.watch(stage.open())
    await it_ended_well(stage, told_nobody)
    await it_ended_well(stage, await stage.watch(stage.open()))


async def test_two_processes_at_once_make_one_job_and_agree(stage: Stage) -> None:
    stage.story()
    verdicts = await asyncio.gather(stage.watch(stage.open()), stage.watch(stage.open()))
    assert {each.phase for each in verdicts} == {Phase.SUCCEEDED}, "whoever comes second finds the work gone, and done"
    assert len(stage.uids) == 1
    await stage.nothing_is_left()


async def test_a_job_whose_creation_was_never_answered_is_noted_and_not_made_again(stage: Stage) -> None:
    stage.k.fail("create", "rayjobs", "drop", times=1)
    first = stage.open()
    while not await first.ensure(stage.request):
        stage.take_stock()
    await first.close()
    stage.k.remove("rayjobs", stage.request.name)
    verdict = await stage.watch(stage.open())
    assert (verdict.phase, verdict.code) == (Phase.LOST, "RT204")
    await it_left_nothing(stage)


async def test_deleting_again_waits_for_what_an_earlier_delete_left(stage: Stage) -> None:
    backend = stage.open()
    await backend.ensure(stage.request)
    await stage.comes_up()
    stage.k.collects = False
    await backend.stop(stage.request)
    stage.operator = False
    name = stage.request.name
    stage.k.edit("rayjobs", name, {"metadata": {"finalizers": None}})
    assert stage.k.find("rayjobs", name) is None
    deleting = asyncio.create_task(backend.delete(stage.request))
    await asyncio.sleep(0.1)
    assert not deleting.done()
    for plural in ("rayclusters", "pods"):
        for item in stage.k.items(plural):
            stage.k.remove(plural, item["metadata"]["name"])
    async with asyncio.timeout(10):
        await deleting


async def test_a_job_goes_though_its_ray_cannot_be_asked_to_stop_it(stage: Stage) -> None:
    stage.story("running")
    backend = stage.open()
    watching = asyncio.create_task(stage.watch(backend))
    while stage.elapsed < 100:
        await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.wait({watching})
    stage.k.fail("get", "secrets", 403, times=None)
    other = stage.open()
    await other.stop(stage.request)
    await it_left_nothing(stage)


# A shared cluster.


async def shared(stage: Stage, storage: Path) -> Any:
    cluster = stage.asks(storage, Kind.CLUSTER, "cluster")
    await stage.open().ensure(cluster)
    await stage.controller.step("ready")
    stage.controller.clusters.secret(stage.controller.cluster(), stage.ray.token)
    stage.k.serve(f"{cluster.name}-head-svc", {DASHBOARD_PORT: stage.ray.url})
    return cluster, replace(stage.request, cluster=cluster.name, slice="", options={})


async def test_a_head_service_that_is_away_does_not_mean_that_the_job_is(stage: Stage, tmp_path: Path) -> None:
    cluster, job = await shared(stage, tmp_path)
    service = f"{cluster.name}-head-svc"
    stage.request = job
    stage.at(20, lambda: stage.k.remove("services", service))
    stage.at(80, lambda: stage.k.serve(service, {DASHBOARD_PORT: stage.ray.url}))
    stage.at(100, stage.writes_result)
    stage.at(100, lambda: stage.ray.end(job.name))
    verdict = await stage.watch(stage.open(), job)
    assert verdict.phase is Phase.SUCCEEDED, verdict
    assert stage.longest_silence() <= QUIET_S


async def test_a_cluster_that_is_made_anew_is_asked_with_its_own_token(stage: Stage, tmp_path: Path) -> None:
    cluster, job = await shared(stage, tmp_path)
    backend = stage.open()
    assert await backend.ensure(job)
    stage.k.remove("rayclusters", cluster.name)
    for plural in ("pods", "secrets", "services"):
        for item in stage.k.items(plural):
            stage.k.remove(plural, item["metadata"]["name"])
    stage.ray.token, stage.ray.jobs = "another", {}
    await shared(stage, tmp_path)
    again = replace(job, identity=replace(job.identity, attempt=2))
    assert await backend.ensure(again)
    assert list(stage.ray.jobs) == [again.name]


async def test_a_job_whose_submission_was_never_noted_is_stopped_too(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, job = await shared(stage, tmp_path)
    backend = stage.open()
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "note_submitted", storage_is_down)
        with pytest.raises(Exception, match="does not answer"):
            await backend.ensure(job)
    await stage.open().stop(job)
    assert stage.ray.jobs[job.name]["status"] == "STOPPED"
