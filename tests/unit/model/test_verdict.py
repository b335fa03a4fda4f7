"""judge(): every combination of what can be seen, and words that do not exist yet."""

import itertools
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import UserCodeError
from airflow_raytpu.model.observation import ClusterState, Fault, JobState, Observation, Progress
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.model.verdict import Phase, Verdict, judge

T0 = 1_000_000.0
LIMITS = Deadlines(
    slice_wait=timedelta(minutes=10), start=timedelta(minutes=5), stall=timedelta(minutes=2), total=timedelta(hours=1)
).since(T0)
GOOD = Outcome(request="r", value={"step": 300})
BAD = Outcome(
    request="r", code=UserCodeError.code, cause="loop raised ValueError", traceback="digits/train.py:58: ValueError: x"
)
RUNNING = Progress(
    request="r", phase="training", at=T0 + 60, done=10, total=100, unit="step", slice_at=T0 + 30, first_at=T0 + 50
)


def seen(cluster=ClusterState.READY, job=JobState.RUNNING, **more):
    return Observation(cluster=cluster, job=job, **more)


@pytest.mark.parametrize(
    ("cluster", "job", "outcome"), list(itertools.product(ClusterState, JobState, [None, GOOD, BAD]))
)
def test_success_is_only_the_jobs_own_success_with_its_result(cluster, job, outcome):
    verdict = judge(seen(cluster, job, outcome=outcome), LIMITS, T0 + 1)
    succeeded = job is JobState.SUCCEEDED and outcome is GOOD
    assert (verdict.phase is Phase.SUCCEEDED) == succeeded
    if outcome is BAD:
        assert verdict.phase is Phase.FAILED


@pytest.mark.parametrize(
    ("job", "phase", "code"),
    [
        (JobState.QUEUED, Phase.WAITING, ""),
        (JobState.RUNNING, Phase.WAITING, ""),
        (JobState.UNRECOGNISED, Phase.WAITING, ""),
        (JobState.SUCCEEDED, Phase.FAILED, "RT302"),
        (JobState.FAILED, Phase.LOST, "RT204"),
        (JobState.STOPPED, Phase.FAILED, "RT302"),
        (JobState.ABSENT, Phase.LOST, "RT204"),
    ],
)
def test_a_job_without_a_result(job, phase, code):
    verdict = judge(seen(job=job), LIMITS, T0 + 1)
    assert (verdict.phase, verdict.code) == (phase, code)


@pytest.mark.parametrize(
    ("cluster", "phase"),
    [
        (ClusterState.READY, Phase.SUCCEEDED),
        (ClusterState.STARTING, Phase.WAITING),
        (ClusterState.SUSPENDED, Phase.WAITING),
        (ClusterState.STOPPING, Phase.WAITING),
        (ClusterState.UNRECOGNISED, Phase.WAITING),
        (ClusterState.ABSENT, Phase.LOST),
        (ClusterState.FAILED, Phase.LOST),
    ],
)
def test_a_cluster_alone(cluster, phase):
    facts = {"dashboard": "http://127.0.0.1:1"}
    verdict = judge(seen(cluster, None, facts=facts), LIMITS, T0 + 1)
    assert verdict.phase is phase
    assert verdict.value == (facts if phase is Phase.SUCCEEDED else {})


@pytest.mark.parametrize("cluster", [ClusterState.ABSENT, ClusterState.FAILED])
def test_a_job_on_a_lost_cluster_is_lost(cluster):
    assert judge(seen(cluster), LIMITS, T0 + 1).phase is Phase.LOST


@pytest.mark.parametrize("cluster", [ClusterState.ABSENT, ClusterState.FAILED])
def test_a_success_outlives_its_cluster(cluster):
    assert judge(seen(cluster, JobState.SUCCEEDED, outcome=GOOD), LIMITS, T0 + 1).phase is Phase.SUCCEEDED


@pytest.mark.parametrize("cluster", [ClusterState.SUSPENDED, ClusterState.STARTING, ClusterState.READY])
@pytest.mark.parametrize(
    ("job", "began"), [(JobState.QUEUED, 0.0), (JobState.RUNNING, T0 + 61), (JobState.UNRECOGNISED, T0 + 61)]
)
def test_a_run_whose_slice_was_taken_waits_for_another_one(cluster, job, began):
    """Its last progress is old by now, and neither stall nor the first slice_wait counts any more."""
    taken = seen(cluster, job, progress=RUNNING, began=began, detail="evicted (Preempted)")
    for at in (T0 + 60 + 121, T0 + 601, T0 + 60 + 600):
        verdict = judge(taken, LIMITS, at)
        assert (verdict.phase, verdict.message) == (Phase.WAITING, f"job {job.value}: evicted (Preempted)")
    late = judge(taken, LIMITS, T0 + 60 + 601)
    assert (late.phase, late.code, late.stop) == (Phase.FAILED, "RT203", True)


def test_progress_of_the_present_run_counts_whenever_that_began():
    again = seen(progress=replace(RUNNING, at=T0 + 70), began=T0 + 61)
    assert judge(again, LIMITS, T0 + 71).phase is Phase.RUNNING
    assert judge(again, LIMITS, T0 + 70 + 121).code == "RT206"


FAULT = Fault(code="RT106", cause="numOfHosts is 3 where 4 are due.", lever="Ask for 4.")


@pytest.mark.parametrize(
    ("cluster", "job", "outcome"), list(itertools.product(ClusterState, [None, *JobState], [None, GOOD, BAD]))
)
def test_a_fault_ends_the_waiting_unless_the_work_has_its_own_word(cluster, job, outcome):
    verdict = judge(seen(cluster, job, outcome=outcome, fault=FAULT), LIMITS, T0 + 1)
    without = judge(seen(cluster, job, outcome=outcome), LIMITS, T0 + 1)
    if outcome is BAD or job is JobState.SUCCEEDED:
        assert verdict == without
    else:
        assert verdict == Verdict(phase=Phase.FAILED, message=FAULT.cause, code="RT106", lever=FAULT.lever, stop=True)


def test_a_fault_takes_no_cluster_away_from_others():
    assert not judge(seen(job=None, fault=FAULT, in_use=True), LIMITS, T0 + 1).stop


def test_a_fault_that_came_with_no_answer_does_not_count():
    assert not judge(replace(Observation.unreachable("503"), fault=FAULT), LIMITS, T0 + 1).phase.final


def test_no_answer_is_never_a_verdict_until_a_deadline_passes():
    silent = Observation.unreachable("503")
    assert not judge(silent, LIMITS, T0 + 3599).phase.final
    late = judge(silent, LIMITS, T0 + 3601)
    assert (late.phase, late.code, late.stop) == (Phase.FAILED, "RT207", True)


@pytest.mark.parametrize(
    ("progress", "at", "code"),
    [
        (None, T0 + 601, "RT203"),
        (replace(RUNNING, slice_at=0.0, first_at=0.0, phase="waiting for a slice"), T0 + 601, "RT203"),
        (replace(RUNNING, first_at=0.0), T0 + 30 + 301, "RT205"),
        (RUNNING, T0 + 60 + 121, "RT206"),
        (replace(RUNNING, at=T0 + 3599), T0 + 3601, "RT207"),
    ],
)
def test_each_deadline_fires_with_its_own_code_and_stops_the_work(progress, at, code):
    before = judge(seen(progress=progress), LIMITS, at - 2)
    assert not before.phase.final
    verdict = judge(seen(progress=progress), LIMITS, at)
    assert (verdict.phase, verdict.code, verdict.stop) == (Phase.FAILED, code, True)
    assert verdict.lever


def test_failure_text_has_the_authors_frames_last():
    error = judge(seen(job=JobState.FAILED, outcome=BAD), LIMITS, T0 + 1).error()
    assert isinstance(error, UserCodeError)
    assert str(error).splitlines()[-1] == "digits/train.py:58: ValueError: x"


def test_a_failure_seen_before_the_job_has_ended_stops_it():
    assert judge(seen(job=JobState.RUNNING, outcome=BAD), LIMITS, T0 + 1).stop
    assert not judge(seen(job=JobState.FAILED, outcome=BAD), LIMITS, T0 + 1).stop


@pytest.mark.parametrize("outcome", [GOOD, BAD])
def test_a_verdict_survives_json(outcome):
    verdict = judge(seen(job=JobState.SUCCEEDED, outcome=outcome), LIMITS, T0 + 1)
    assert Verdict.from_dict(verdict.to_dict()) == verdict


def test_running_is_said_with_step_rate_and_eta():
    line = judge(seen(progress=replace(RUNNING, rate=2.0, metrics={"loss": 0.2134})), LIMITS, T0 + 61).message
    assert line == "training  step 10/100  loss 0.2134  2 steps/s  ETA 0:45"


def test_progress_and_outcome_from_a_newer_release_are_read():
    assert Progress.from_dict(RUNNING.to_dict() | {"colour": "red"}) == RUNNING
    assert Outcome.from_dict(GOOD.to_dict() | {"colour": "red"}) == GOOD
