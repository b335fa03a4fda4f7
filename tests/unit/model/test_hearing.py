"""Every deadline, with five minutes between Airflow's clock and the cluster's."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.hearing import DOUBT_S, Ear
from airflow_raytpu.model.observation import ClusterState, JobState, Observation, Progress
from airflow_raytpu.model.verdict import Phase, Verdict, judge

T0 = 1_000_000.0
LIMITS = Deadlines(
    slice_wait=timedelta(minutes=10), start=timedelta(minutes=5), stall=timedelta(minutes=4), total=timedelta(hours=1)
).since(T0)
POLL_S = 15.0
SKEWS = [-300.0, -61.0, 0.0, 61.0, 300.0]


def life(until: float, *, slice_after: float | None = 30.0, first_after: float | None = 90.0, last: float = 1e9):
    """Progress by the true clock at each look: a slice, a first step, a step each 20 s, and the last one at *last*."""
    at = T0
    while at <= until:
        since = min(at, last) - T0
        slice_at = T0 + slice_after if slice_after is not None and since >= slice_after else 0.0
        first_at = T0 + first_after if first_after is not None and since >= first_after else 0.0
        done = 1 + int((since - first_after) // 20) if first_at and first_after is not None else 0
        moved = first_at + 20 * (done - 1) if done else (slice_at or T0)
        phase = "training" if slice_at else "waiting for a slice"
        yield (
            at,
            Progress(request="r", phase=phase, at=moved, done=done, unit="step", slice_at=slice_at, first_at=first_at),
        )
        at += POLL_S


def by(clock: float, progress: Progress) -> Progress:
    times = {name: getattr(progress, name) for name in ("at", "slice_at", "first_at")}
    return replace(progress, **{name: at + clock if at else at for name, at in times.items()})


def ended(skew: float, ear: Ear | None = None, since: float = T0, **story) -> tuple[float, Verdict] | None:
    """When the watch ends and with what, where the cluster's clock is ahead by *skew* seconds."""
    ear = ear or Ear()
    for now, progress in life(T0 + 4000, **story):
        if now < since:
            continue
        seen = Observation(cluster=ClusterState.READY, job=JobState.RUNNING, progress=by(skew, progress))
        verdict = judge(ear.hear(seen, now), LIMITS, now)
        if verdict.phase.final:
            return now - T0, verdict
    return None


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize(
    ("code", "due", "story"),
    [
        ("RT203", 600, {"slice_after": None, "first_after": None}),
        ("RT205", 330, {"first_after": None}),
        ("RT206", 730 + 240 - 20, {"last": T0 + 730}),
        ("RT207", 3600, {}),
    ],
)
def test_each_deadline_comes_when_it_is_due_by_our_own_clock(skew: float, code: str, due: float, story: dict) -> None:
    end = ended(skew, **story)
    assert end is not None
    at, verdict = end
    assert (verdict.phase, verdict.code, verdict.stop) == (Phase.FAILED, code, True)
    assert due - POLL_S <= at <= due + 60 + 2 * POLL_S


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("since", [T0 + 100, T0 + 500, T0 + 900, T0 + 1000, T0 + 1100])
def test_a_listener_that_begins_anew_is_never_early_and_late_by_the_doubt_at_most(skew: float, since: float) -> None:
    """The last step is at 710 s, so 950 s is when it stalls."""
    end = ended(skew, since=since, last=T0 + 730)
    assert end is not None
    at, verdict = end
    assert verdict.code == "RT206"
    assert 950 - POLL_S <= at <= max(950 + DOUBT_S + abs(skew), since - T0) + 2 * POLL_S


def test_without_it_five_minutes_would_be_a_stall() -> None:
    """The fault that this is for: a clock that is behind, and a job that works."""
    late = Progress(request="r", phase="training", at=T0 + 100 - 300, done=3, unit="step", slice_at=T0, first_at=T0)
    seen = Observation(cluster=ClusterState.READY, job=JobState.RUNNING, progress=late)
    assert judge(seen, LIMITS, T0 + 101).code == "RT206"
    assert judge(Ear().hear(seen, T0 + 101), LIMITS, T0 + 101).phase is Phase.RUNNING


@given(st.floats(0, 50), st.floats(0, 50), st.integers(0, 100))
def test_a_right_clock_is_left_as_it_is(age: float, further: float, done: int) -> None:
    ear, first = Ear(), Progress(request="r", phase="training", at=T0, done=done, slice_at=T0 - 5, first_at=T0 - 1)
    for now, progress in ((T0 + age, first), (T0 + 100 + further, replace(first, done=done + 1, at=T0 + 100))):
        seen = Observation(cluster=ClusterState.READY, job=JobState.RUNNING, progress=progress, began=T0 - 9)
        assert ear.hear(seen, now) == seen


def test_news_after_a_long_silence_of_our_own_says_nothing_of_the_clock() -> None:
    ear = Ear()
    early = Progress(request="r", phase="training", at=T0, done=1, slice_at=T0, first_at=T0)
    ear.hear(Observation(cluster=ClusterState.READY, job=JobState.RUNNING, progress=early), T0 + 1)
    news = Observation(
        cluster=ClusterState.READY, job=JobState.RUNNING, progress=replace(early, done=9, at=T0 + 100), began=T0 + 50
    )
    assert ear.hear(news, T0 + 900) == news


@pytest.mark.parametrize("skew", [-300.0, 300.0])
def test_the_present_run_stays_the_present_run(skew: float) -> None:
    """When a run began and when it was last heard of are by one clock, and are moved together."""
    now = T0 + 100
    progress = Progress(request="r", phase="training", at=now + skew, done=1, slice_at=T0 + 50, first_at=now + skew)
    seen = Observation(
        cluster=ClusterState.READY, job=JobState.RUNNING, progress=progress, began=progress.at - 10, detail="x"
    )
    heard = Ear().hear(seen, now)
    assert heard.progress is not None
    assert heard.progress.at - heard.began == pytest.approx(10)
    assert judge(heard, LIMITS, now).phase is Phase.RUNNING
