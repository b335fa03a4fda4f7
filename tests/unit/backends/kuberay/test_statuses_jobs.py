"""RayJobs: every pair of its two status fields, and every reason, to one documented outcome."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from airflow_raytpu.backends.kuberay import statuses
from airflow_raytpu.backends.kuberay.statuses import Seen
from airflow_raytpu.backends.raystatuses import Job
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.verdict import Phase, judge
from tests.doubles.kuberay_objects import T0, cluster, event, job, pod, pods, stamp

LIMITS = Deadlines(slice_wait=timedelta(hours=1)).since(T0)
JOB_WORDS = ("", "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED", "DREAMING")
DEPLOYMENT_WORDS = (
    "",
    "Initializing",
    "Running",
    "Complete",
    "Failed",
    "ValidationFailed",
    "Suspending",
    "Suspended",
    "Retrying",
    "Waiting",
    "Daydreaming",
)
Q, R, U = JobState.QUEUED, JobState.RUNNING, JobState.UNRECOGNISED
S, F, X = JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED
#                     ""   PENDING RUNNING STOPPED SUCCEEDED FAILED unknown
TABLE = {
    "": (Q, Q, Q, Q, S, Q, U),
    "Initializing": (Q, Q, Q, Q, S, Q, U),
    "Running": (Q, Q, R, X, S, F, U),
    "Complete": (U, U, U, X, S, F, U),
    "Failed": (F, F, F, X, S, F, F),
    "ValidationFailed": (F, F, F, F, S, F, F),
    "Suspending": (Q, Q, Q, Q, S, Q, Q),
    "Suspended": (Q, Q, Q, Q, S, Q, Q),
    "Retrying": (Q, Q, Q, Q, S, Q, U),
    "Waiting": (Q, Q, Q, Q, S, Q, U),
    "Daydreaming": (U, U, U, U, S, U, U),
}


FULL = "0/3 nodes are available: 3 Insufficient google.com/tpu."


def of_job(made: dict, now: float = T0 + 60, **more) -> Observation:
    return statuses.of_job(Seen(job=made, **more), now)


def test_the_table_is_whole() -> None:
    assert set(TABLE) == set(DEPLOYMENT_WORDS)


@pytest.mark.parametrize(("deployment", "status"), list(itertools.product(DEPLOYMENT_WORDS, JOB_WORDS)))
def test_the_two_fields_do_not_move_together(deployment: str, status: str) -> None:
    seen = of_job(job(deployment, status))
    assert seen.job is TABLE[deployment][JOB_WORDS.index(status)]
    if deployment in {"Suspending", "Suspended"} and status != "SUCCEEDED":
        assert seen.cluster is ClusterState.SUSPENDED
    if deployment in {"", "Initializing", "Suspending", "Suspended", "Retrying", "Waiting"}:
        assert not judge(seen, LIMITS, T0 + 60).phase.final or status == "SUCCEEDED"


@pytest.mark.parametrize(
    ("status", "reason", "phase", "code"),
    [
        ("", "SubmissionFailed", Phase.LOST, "RT208"),
        ("RUNNING", "JobStatusCheckTimeoutExceeded", Phase.LOST, "RT204"),
        ("RUNNING", "JobDeploymentStatusTransitionGracePeriodExceeded", Phase.LOST, "RT204"),
        ("FAILED", "JobDeploymentStatusTransitionGracePeriodExceeded", Phase.LOST, "RT204"),
        ("RUNNING", "DeadlineExceeded", Phase.FAILED, "RT207"),
        ("STOPPED", "DeadlineExceeded", Phase.FAILED, "RT207"),
        ("", "PreRunningDeadlineExceeded", Phase.FAILED, "RT203"),
        ("", "ValidationFailed", Phase.FAILED, "RT106"),
        ("FAILED", "AppFailed", Phase.LOST, "RT204"),
        ("RUNNING", "AppFailed", Phase.LOST, "RT204"),
        ("STOPPED", "", Phase.FAILED, "RT302"),
        ("", "NeverHeardOf", Phase.LOST, "RT204"),
    ],
)
def test_a_failed_deployment_fails_at_once_and_says_why(status: str, reason: str, phase: Phase, code: str) -> None:
    made = job("Failed", status, reason=reason, message="its own words", spec={"activeDeadlineSeconds": 7200})
    verdict = judge(of_job(made), LIMITS, T0 + 60)
    assert (verdict.phase, verdict.code) == (phase, code)
    assert "its own words" in verdict.message
    if reason == "DeadlineExceeded":
        assert "7200 s" in verdict.message


def test_a_cluster_that_was_ready_missed_the_start_and_not_the_slice() -> None:
    ready = {"conditions": [{"type": "RayClusterProvisioned", "status": "True"}]}
    made = job("Failed", reason="PreRunningDeadlineExceeded", rayClusterStatus=ready)
    assert judge(of_job(made), LIMITS, T0 + 60).code == "RT205"


def test_a_refused_job_is_over_at_once_with_the_reason() -> None:
    words = "The RayJob spec is invalid: the RayJob has suspend set to true"
    verdict = judge(
        of_job(job("ValidationFailed", reason="ValidationFailed", message=words), now=T0 + 1), LIMITS, T0 + 1
    )
    assert (verdict.phase, verdict.code, verdict.stop) == (Phase.FAILED, "RT106", True)
    assert words in verdict.message


def test_a_retried_job_waits_for_its_next_cluster() -> None:
    made = job("Running", "FAILED", spec={"backoffLimit": 2}, failed=1)
    assert of_job(made).job is JobState.QUEUED
    assert of_job(job("Running", "FAILED", spec={"backoffLimit": 2}, failed=2)).job is JobState.FAILED


def test_a_stop_that_a_suspension_causes_is_no_end() -> None:
    told = job("Running", "STOPPED", spec={"suspend": True})
    assert (of_job(told).job, of_job(told).cluster) == (JobState.QUEUED, ClusterState.SUSPENDED)
    resumed = job("Running", "STOPPED", metadata={"generation": 3}, observedGeneration=2)
    assert of_job(resumed).job is JobState.QUEUED
    assert of_job(job("Running", "STOPPED", observedGeneration=1)).job is JobState.STOPPED
    assert of_job(job("Complete", "STOPPED", metadata={"generation": 3}, observedGeneration=2)).job is JobState.STOPPED


def test_an_absent_job_is_absent() -> None:
    seen = statuses.of_job(Seen(), T0)
    assert (seen.cluster, seen.job) == (ClusterState.ABSENT, JobState.ABSENT)


def test_a_job_that_is_being_deleted_is_stopping_and_keeps_its_end() -> None:
    going = {"deletionTimestamp": stamp(T0), "finalizers": ["ray.io/rayjob-finalizer"]}
    seen = of_job(job("Running", "RUNNING", metadata=going), now=T0 + 600)
    assert (seen.cluster, seen.job) == (ClusterState.STOPPING, JobState.RUNNING)
    assert seen.detail == "being deleted for 10 min, held by ray.io/rayjob-finalizer"
    assert of_job(job("Complete", "SUCCEEDED", metadata=going)).job is JobState.SUCCEEDED


def test_the_clusters_own_facts_and_trouble_come_with_the_job() -> None:
    made = job("Initializing", rayClusterName="c")
    own = cluster("c", owner=made)
    waiting = of_job(
        made, cluster=own, pods=[pod(own, head=True), pod(own, unschedulable="0/3 nodes are available: x.")]
    )
    assert (waiting.cluster, waiting.job) == (ClusterState.STARTING, JobState.QUEUED)
    assert waiting.detail.startswith("0 of 4 hosts scheduled")
    running = of_job(job("Running", "RUNNING"), cluster=own, pods=pods(own))
    assert (running.cluster, running.job) == (ClusterState.READY, JobState.RUNNING)
    assert running.facts["slices"] == [{"name": "tpu-0", "hosts": 4, "chips": 16, "whole": True}]


def test_a_cluster_of_another_owner_is_not_the_jobs() -> None:
    made, earlier = job("Initializing"), job(name="earlier")
    other = cluster("c", owner=earlier)
    assert of_job(made, cluster=other, pods=pods(other)).detail == "its cluster is not made yet"


def test_what_a_webhook_denies_is_told_by_an_event_of_the_job_alone() -> None:
    made = job("Initializing")
    words = (
        'Failed to create RayCluster ml/x: admission webhook "kuberay-tpu-webhook.ray.io" denied the request: '
        "Number of workers in worker group not equal to specified topology"
    )
    told = [event(made, "FailedToCreateRayCluster", words, first=T0 + 5, last=T0 + 55)]
    early, late = (judge(of_job(made, now=now, events=told), LIMITS, now) for now in (T0 + 20, T0 + 60))
    assert not early.phase.final
    assert (late.phase, late.code) == (Phase.FAILED, "RT106")
    assert "not equal to specified topology" in late.message
    assert "for 55 s" in late.message
    created = [*told, event(made, "CreatedRayCluster", "Created cluster", first=T0 + 57, kind="Normal")]
    assert of_job(made, events=created).fault is None


def test_a_head_that_began_anew_took_the_driver_with_it() -> None:
    made = job("Running", "RUNNING", rayJobInfo={"startTime": stamp(T0 + 100)})
    own = cluster("c", owner=made, provisioned=True, head_ready=True)
    well = of_job(made, cluster=own, pods=pods(own))
    assert well.job is JobState.RUNNING
    killed = {"reason": "OOMKilled", "exitCode": 137}
    for head in (
        pod(own, head=True, terminated=killed),
        pod(own, head=True, at=T0 + 200, last=killed, restarts=1),
    ):
        seen = of_job(made, cluster=own, pods=[head, *pods(own)[1:]])
        assert seen.job is JobState.ABSENT
        assert "the head pod was lost, and the driver with it: OOMKilled (exit code 137)" in seen.detail


def test_a_head_that_is_only_slow_to_answer_is_not_lost() -> None:
    made = job("Running", "RUNNING", rayJobInfo={"startTime": stamp(T0 + 100)})
    own = cluster("c", owner=made, provisioned=True)
    seen = of_job(made, cluster=own, pods=[pod(own, head=True, ready=False), *pods(own)[1:]])
    assert (seen.cluster, seen.job) == (ClusterState.STARTING, JobState.RUNNING)
    assert not judge(seen, LIMITS, T0 + 200).phase.final


@pytest.mark.parametrize("word", [JobState.FAILED, JobState.STOPPED, JobState.SUCCEEDED])
def test_rays_own_word_outruns_kuberays(word: JobState) -> None:
    made = job("Running", "RUNNING")
    seen = statuses.of_job(Seen(job=made), T0, Job(state=word, message="exit code 1"))
    assert (seen.job, seen.detail) == (word, "exit code 1")


def test_a_job_that_ray_does_not_know_is_lost_only_while_it_should_run() -> None:
    assert statuses.of_job(Seen(job=job("Running", "RUNNING")), T0, missed=True).job is JobState.ABSENT
    assert statuses.of_job(Seen(job=job("Running", "PENDING")), T0, missed=True).job is JobState.QUEUED
    assert statuses.of_job(Seen(job=job("Complete", "SUCCEEDED")), T0, missed=True).job is JobState.SUCCEEDED


def test_an_ended_job_speaks_for_itself_when_its_cluster_is_gone() -> None:
    seen = of_job(job("Failed", "FAILED", reason="AppFailed", message="exit code 1"))
    assert (seen.cluster, seen.detail) == (ClusterState.ABSENT, "AppFailed: exit code 1")


def test_the_present_run_of_a_job_has_a_beginning() -> None:
    assert of_job(job("Running", "RUNNING", rayJobInfo={"startTime": stamp(T0 + 7)})).began == T0 + 7


@pytest.mark.parametrize(
    ("deployment", "status", "submitted", "running"),
    [
        ("", "", False, False),
        ("Initializing", "", False, False),
        ("Running", "PENDING", True, True),
        ("Running", "RUNNING", True, True),
        ("Running", "FAILED", True, False),
        ("Complete", "SUCCEEDED", True, False),
        ("Suspended", "STOPPED", False, False),
        ("Failed", "", False, False),
    ],
)
def test_what_can_be_asked_of_ray(deployment: str, status: str, submitted: bool, running: bool) -> None:
    made = job(deployment, status, rayClusterName="c")
    assert (statuses.is_submitted(made), statuses.is_running(made)) == (submitted, running)
    assert statuses.cluster_of(made) == "c"
