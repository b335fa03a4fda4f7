"""Clocks that differ: the worker's that asked, the triggerer's that waits, and one that is put forward or back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_raytpu.backends.kuberay.observing.reading import moment
from airflow_raytpu.model.deadlines import Deadlines, Limits
from airflow_raytpu.model.hearing import Ear
from airflow_raytpu.model.observation import ClusterState, JobState, Observation, Progress
from airflow_raytpu.model.verdict import Phase, judge

T0 = 1_000_000.0
LIMITS = Deadlines(
    slice_wait=timedelta(minutes=30), start=timedelta(minutes=6), stall=timedelta(minutes=6), total=timedelta(hours=3)
).since(T0)
WAITING = Observation(cluster=ClusterState.STARTING, job=JobState.QUEUED)
SKEWS = [-300.0, -1.0, 0.0, 1.0, 300.0]
SUMMER_TIME_ENDS = 1_792_890_000.0
"""25 October 2026, 01:00 UTC: clocks in Berlin go from 03:00 back to 02:00."""


def end_of_the_wait(seen: Observation, limits: Limits, skew: float) -> float:
    """True seconds since T0 at which a triggerer whose clock is *skew* ahead ends the wait."""
    low, high = 0.0, 4 * 3600.0
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (low, middle) if judge(seen, limits, T0 + middle + skew).phase.final else (middle, high)
    return high


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize(
    ("seen", "due"),
    [(WAITING, 1800.0), (Observation.unreachable("no answer"), 3 * 3600.0)],
    ids=["slice_wait", "total"],
)
def test_a_limit_on_the_whole_is_off_by_the_clocks_difference_and_no_more(
    seen: Observation, due: float, skew: float
) -> None:
    assert end_of_the_wait(seen, LIMITS, skew) == pytest.approx(due - skew, abs=1)


@pytest.mark.parametrize(("worker", "triggerer", "cluster"), list(itertools.product([-150.0, 150.0], repeat=3)))
def test_work_that_goes_on_is_never_ended_by_clocks_that_differ(
    worker: float, triggerer: float, cluster: float
) -> None:
    """Each two are five minutes apart at most. A slice comes at once, and then a step every five minutes."""
    limits = replace(LIMITS, asked_at=T0 + worker)
    ear, steps = Ear(), [T0 + 30 + 300 * n for n in range(1, 20)]
    for at in range(int(T0) + 60, int(steps[-1]), 15):
        done = [step for step in steps if step <= at]
        progress = Progress(
            request="r",
            phase="training",
            at=(done[-1] if done else T0 + 30) + cluster,
            done=len(done),
            slice_at=T0 + 30 + cluster,
            first_at=steps[0] + cluster if done else 0.0,
        )
        seen = Observation(cluster=ClusterState.READY, job=JobState.RUNNING, progress=progress)
        now = at + triggerer
        verdict = judge(ear.hear(seen, now), limits, now)
        assert verdict.phase is Phase.RUNNING, (at - T0, verdict)


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


@pytest.mark.usefixtures("zone")
def test_the_end_of_summer_time_shortens_and_lengthens_no_wait() -> None:
    limits = Deadlines(slice_wait=timedelta(hours=2)).since(SUMMER_TIME_ENDS - 1800)
    assert not judge(WAITING, limits, limits.slice_until - 1).phase.final
    assert judge(WAITING, limits, limits.slice_until + 1).code == "RT203"
    written = {"creationTimestamp": "2026-10-25T00:59:59Z", "endTime": "2026-10-25T03:00:01+02:00"}
    assert moment(written, "creationTimestamp") == SUMMER_TIME_ENDS - 1
    assert moment(written, "endTime") == SUMMER_TIME_ENDS + 1
