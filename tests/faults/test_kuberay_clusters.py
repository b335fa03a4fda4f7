"""Trouble on the way of a request that is a cluster and no more, from the watch down to the API server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from airflow_raytpu.doctor.needs import NEEDED
from airflow_raytpu.model.request import Kind
from airflow_raytpu.model.verdict import Phase
from airflow_raytpu.triggers.capacity import MIN_IDLE
from tests.doubles.kubernetes.trouble import Fault
from tests.faults.kuberay_stage import QUIET_S, SLICE_WAIT_S, Stage, staged
from tests.faults.test_kuberay_refusals import account

_STEPS = {30: "provisioning", 45: "starting", 60: "ready"}


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with staged(tmp_path, monkeypatch) as made:
        made.request = made.asks(tmp_path, Kind.CLUSTER, "cluster", ttl_s=100)
        yield made


def comes_up(stage: Stage, until: str = "ready") -> None:
    for seconds, step in _STEPS.items():
        stage.at(seconds, lambda step=step: stage.controller.step(step))
        if step == until:
            return


def uids(stage: Stage) -> list[str]:
    return [cluster["metadata"]["uid"] for cluster in stage.k.items("rayclusters")]


@pytest.mark.parametrize("fault", [429, 500, 503, "reset", "drop", "cut", "hang"])
async def test_it_comes_up_once_through_any_trouble(stage: Stage, fault: Fault) -> None:
    stage.k.fail("create", "rayclusters", fault, times=1)
    for seconds in (15, 35, 55):
        stage.at(seconds, lambda: stage.k.fail("*", "*", fault, times=4))
        stage.at(seconds + 5, lambda: stage.k.cut_watches("reset"))
    comes_up(stage)
    backend = stage.open()
    verdict = await stage.watch(backend)
    assert verdict.phase is Phase.SUCCEEDED
    assert len(verdict.value["slices"]) == 1
    assert len(uids(stage)) == 1
    assert stage.longest_silence() <= QUIET_S
    stage.k.heal()
    await backend.delete(stage.request)
    assert not stage.left()


async def test_one_that_is_deleted_while_it_starts_is_lost(stage: Stage) -> None:
    comes_up(stage, "starting")
    stage.at(50, lambda: stage.k.remove("rayclusters", stage.request.name))
    verdict = await stage.watch(stage.open())
    assert (verdict.phase, verdict.code) == (Phase.LOST, "RT204")
    await stage.nothing_is_left()


async def test_one_that_gets_no_node_is_given_up_and_deleted(stage: Stage) -> None:
    comes_up(stage, "provisioning")
    verdict = await stage.watch(stage.open())
    assert verdict.code == "RT203"
    assert "0 of 4 hosts scheduled: Insufficient google.com/tpu" in verdict.message
    assert SLICE_WAIT_S <= stage.elapsed <= SLICE_WAIT_S + 20
    await stage.nothing_is_left()


async def test_slices_that_must_be_idle_and_cannot_be_seen_are_why_it_ends(stage: Stage, tmp_path: Path) -> None:
    stage.request = stage.asks(tmp_path, Kind.CLUSTER, "cluster", arguments={MIN_IDLE: 1})
    comes_up(stage)
    without = [need for need in NEEDED if str(need) == "get secrets"]
    verdict = await stage.watch(stage.open(account(stage, *without)))
    assert verdict.code == "RT203"
    assert "its slices cannot be seen" in verdict.message
    assert "may not get secrets" in verdict.message
    await stage.nothing_is_left()


@pytest.mark.parametrize("fault", [500, "hang", 403])
async def test_a_sign_of_life_that_fails_holds_nothing_up_and_is_said(
    stage: Stage, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    stage.k.fail("patch", "rayclusters", fault, times=None)
    for seconds, step in _STEPS.items():
        stage.at(seconds * 3, lambda step=step: stage.controller.step(step))
    with caplog.at_level(logging.WARNING, "airflow_raytpu.backends.kuberay.backend"):
        verdict = await stage.watch(stage.open())
    assert verdict.phase is Phase.SUCCEEDED
    assert stage.elapsed <= 200
    said = [record for record in caplog.records if "no sign of life" in record.getMessage()]
    assert 1 <= len(said) <= 4
