"""Kueue: suspended is waiting, with the reason and the place in the queue; what it never admits is said."""

from __future__ import annotations

import pytest

from airflow_raytpu.backends.kuberay import statuses
from airflow_raytpu.backends.kuberay.statuses import Seen
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from tests.doubles.kuberay_objects import T0, cluster, condition, job, meta, pods, workload

SHORT = (
    "couldn't assign flavors to pod set tpu: insufficient unused quota for google.com/tpu in flavor v6e, 16 more needed"
)
NEVER = (
    "couldn't assign flavors to pod set tpu: insufficient quota for google.com/tpu in flavor v6e, previously "
    "considered podsets requests (0) + current podset request (64) > maximum capacity (32)"
)
RESERVED = condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue cq")
QUEUED = job("Suspended", spec={"suspend": True})


def pending(reason: str, message: str) -> dict:
    return condition("QuotaReserved", "False", reason, message)


def look(*workloads: dict, made: dict = QUEUED, now: float = T0 + 60, **more) -> Observation:
    return statuses.of_job(Seen(job=made, workloads=workloads, **more), now)


@pytest.mark.parametrize(
    ("conditions", "more", "detail", "final_after_s", "code"),
    [
        ([], {}, "queue user-queue: not looked at by Kueue yet", None, ""),
        ([pending("Pending", SHORT)], {}, f"queue user-queue: {SHORT}", None, ""),
        ([pending("Pending", NEVER)], {}, f"queue user-queue: {NEVER}", 300, "RT203"),
        (
            [pending("Pending", "resource google.com/tpu unavailable in ClusterQueue")],
            {},
            "queue user-queue: resource google.com/tpu unavailable in ClusterQueue",
            300,
            "RT203",
        ),
        (
            [pending("Inadmissible", "LocalQueue user-queue doesn't exist")],
            {},
            "queue user-queue: LocalQueue user-queue doesn't exist",
            300,
            "RT211",
        ),
        (
            [pending("Inadmissible", "ClusterQueue cq is inactive")],
            {},
            "queue user-queue: ClusterQueue cq is inactive",
            None,
            "",
        ),
        (
            [RESERVED],
            {
                "checks": [
                    {"name": "dws", "state": "Pending", "message": "Waiting for resources. ETA: 12:00"},
                    {"name": "other", "state": "Ready"},
                ]
            },
            "queue user-queue: quota reserved; admission check dws Pending, Waiting for resources. ETA: 12:00",
            None,
            "",
        ),
        (
            [RESERVED],
            {"checks": [{"name": "dws", "state": "Retry", "message": "BookingExpired"}]},
            "queue user-queue: quota reserved; admission check dws Retry, BookingExpired",
            None,
            "",
        ),
        (
            [RESERVED],
            {
                "checks": [
                    {
                        "name": "dws",
                        "state": "Rejected",
                        "message": "CapacityRevoked",
                        "lastTransitionTime": condition("", "True")["lastTransitionTime"],
                    }
                ]
            },
            "queue user-queue: quota reserved; admission check dws Rejected, CapacityRevoked",
            30,
            "RT203",
        ),
        (
            [
                condition("Evicted", "True", "Preempted", "Preempted to accommodate a higher priority Workload"),
                pending("Pending", "Preempted to accommodate a higher priority Workload"),
            ],
            {},
            "queue user-queue: evicted (Preempted): Preempted to accommodate a higher priority Workload",
            None,
            "",
        ),
        (
            [condition("Evicted", "True", "PodsReadyTimeout", "Exceeded the timeout")],
            {"requeueState": {"count": 1, "requeueAt": "2026-11-30T12:00:00Z"}},
            "queue user-queue: evicted (PodsReadyTimeout): Exceeded the timeout; queued again at 2026-11-30T12:00:00Z",
            None,
            "",
        ),
        (
            [condition("Evicted", "True", "DeactivatedDueToRequeuingLimitExceeded", "exceeded 5 re-queues")],
            {"active": False},
            "queue user-queue: deactivated: exceeded 5 re-queues",
            30,
            "RT203",
        ),
    ],
)
def test_the_table(conditions: list, more: dict, detail: str, final_after_s: float | None, code: str) -> None:
    held = workload(QUEUED, *conditions, **more)
    seen = look(held, now=T0)
    assert (seen.cluster, seen.job, seen.detail, seen.fault) == (ClusterState.SUSPENDED, JobState.QUEUED, detail, None)
    if final_after_s is None:
        assert look(held, now=T0 + 1e7).fault is None
        return
    assert look(held, now=T0 + final_after_s - 1).fault is None
    fault = look(held, now=T0 + final_after_s).fault
    assert fault is not None
    assert (fault.code, bool(fault.lever)) == (code, True)


def test_the_place_in_the_queue_is_by_priority_and_then_by_age() -> None:
    def other(name: str, **more) -> dict:
        return workload({"kind": "RayJob", "metadata": meta(name)}, pending("Pending", SHORT), **more)

    held = workload(QUEUED, pending("Pending", SHORT), at=T0 + 10)
    behind = [other("later", at=T0 + 20), other("elsewhere", queue="q2"), other("given-up", active=False)]
    behind += [workload({"kind": "RayJob", "metadata": meta("runs")}, RESERVED)]
    ahead = [other("earlier", at=T0), other("higher", at=T0 + 30, priority=100)]
    assert look(held, *behind).detail == f"queue user-queue: {SHORT}"
    assert look(*ahead, held, *behind).detail == f"queue user-queue, 2 ahead: {SHORT}"


def test_admitted_is_out_of_the_queue() -> None:
    held = workload(QUEUED, RESERVED, condition("Admitted", "True", "Admitted"))
    seen = look(held, made=job("Initializing"))
    assert (seen.cluster, seen.detail) == (ClusterState.STARTING, "its cluster is not made yet")


def test_what_was_given_up_stands_since_then_and_not_since_it_was_made() -> None:
    evicted = condition("Evicted", "True", "Deactivated", "by hand", at=T0 + 1000)
    held = workload(QUEUED, evicted, active=False)
    assert look(held, now=T0 + 1029).fault is None
    assert look(held, now=T0 + 1030).fault is not None
    assert look(workload(QUEUED, active=False), now=T0 + 30).fault is not None


def test_a_suspension_whose_workload_nobody_has_seen_names_the_queue() -> None:
    labels = {"labels": {"kueue.x-k8s.io/queue-name": "user-queue"}}
    made = job("Suspended", spec={"suspend": True}, metadata=labels)
    assert look(made=made).detail == "suspended in queue user-queue"
    assert look(made=QUEUED).detail == "suspended"
    alone = cluster("c", suspend=True, **labels)
    assert statuses.of_cluster(Seen(cluster=alone), T0).detail == "suspended in queue user-queue"


def test_an_elastic_job_that_wants_more_runs_on() -> None:
    first = workload(QUEUED, RESERVED, condition("Admitted", "True"))
    more = workload(QUEUED, pending("Pending", SHORT), at=T0 + 50, name="more")
    for held in ([first, more], [more, first]):
        assert look(*held, made=job("Initializing")).cluster is ClusterState.STARTING


def test_a_child_that_stays_suspended_after_its_parent_was_admitted_is_named() -> None:
    made = job("Initializing")
    child = cluster("c", owner=made, suspend=True)
    held = workload(made, RESERVED, condition("Admitted", "True", "Admitted", at=T0))
    seen = look(held, made=made, cluster=child, now=T0 + 1800)
    assert (seen.cluster, seen.job) == (ClusterState.SUSPENDED, JobState.QUEUED)
    assert seen.detail == "its cluster is still suspended, though the job was admitted 30 min ago"


def test_a_workload_of_somebody_else_or_of_a_finished_run_does_not_count() -> None:
    stranger = workload({"kind": "RayJob", "metadata": meta("stranger")}, pending("Pending", SHORT))
    finished = workload(QUEUED, condition("Finished", "True", "Succeeded"))
    for held in (stranger, finished):
        assert "queue" not in look(held).detail


def test_a_job_that_was_admitted_again_runs_and_ends_well() -> None:
    evicted = workload(QUEUED, condition("Evicted", "True", "Preempted", "x"), pending("Pending", SHORT))
    assert look(evicted, made=job("Suspended", "STOPPED", spec={"suspend": True})).job is JobState.QUEUED
    back = workload(QUEUED, RESERVED, condition("Admitted", "True"))
    own = cluster("c", owner=QUEUED, provisioned=True)
    running = look(back, made=job("Running", "RUNNING"), cluster=own, pods=pods(own))
    assert (running.cluster, running.job) == (ClusterState.READY, JobState.RUNNING)
    assert look(back, made=job("Complete", "SUCCEEDED")).job is JobState.SUCCEEDED
