"""From what is known of a cluster and a job to an observation, table by table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_raytpu.backends.raystatuses import Job
from airflow_raytpu.backends.simulated import seen
from airflow_raytpu.backends.simulated.state import Phase, Record
from airflow_raytpu.model.observation import ClusterState, JobState
from tests.unit.backends.simulated.test_state import RECORD

BROKEN = RECORD.with_host(0, 1, alive=False)
HALF = replace(RECORD, slices=(RECORD.slices[0], BROKEN.slices[0]))


@pytest.mark.parametrize(
    ("record", "state"),
    [
        (replace(RECORD, phase=Phase.STARTING), ClusterState.STARTING),
        (RECORD, ClusterState.READY),
        (HALF, ClusterState.READY),
        (BROKEN, ClusterState.FAILED),
        (BROKEN.with_slice(0, awaited="is made anew"), ClusterState.READY),
        (replace(BROKEN, phase=Phase.STOPPING), ClusterState.STOPPING),
        (replace(RECORD, phase=Phase.FAILED), ClusterState.FAILED),
        (replace(RECORD, phase=Phase.STARTING, slices=()), ClusterState.STARTING),
    ],
)
def test_a_cluster_has_one_state(record: Record, state: ClusterState) -> None:
    assert seen.cluster_state(record) is state


@pytest.mark.parametrize(
    ("record", "lost", "submitted", "cluster", "job"),
    [
        (None, "", False, ClusterState.ABSENT, JobState.ABSENT),
        (RECORD, "its supervisor died", True, ClusterState.ABSENT, JobState.ABSENT),
        (replace(RECORD, phase=Phase.STARTING), "", False, ClusterState.STARTING, JobState.QUEUED),
        (replace(RECORD, phase=Phase.STOPPING), "", True, ClusterState.STOPPING, JobState.ABSENT),
        (replace(RECORD, phase=Phase.STOPPING), "", False, ClusterState.STOPPING, JobState.QUEUED),
        (replace(RECORD, phase=Phase.FAILED), "", False, ClusterState.FAILED, JobState.QUEUED),
        (BROKEN, "", True, ClusterState.FAILED, JobState.ABSENT),
    ],
)
def test_where_no_job_can_be_asked_after(
    record: Record | None, lost: str, submitted: bool, cluster: ClusterState, job: JobState
) -> None:
    of_job = seen.without_job(record, lost, is_job=True, submitted=submitted)
    assert (of_job.cluster, of_job.job) == (cluster, job)
    of_cluster = seen.without_job(record, lost, is_job=False, submitted=False)
    assert (of_cluster.cluster, of_cluster.job) == (cluster, None)


def test_the_facts_come_with_readiness_and_not_before() -> None:
    starting = seen.without_job(replace(RECORD, phase=Phase.STARTING), "", is_job=False, submitted=False)
    assert starting.facts == {}
    assert seen.without_job(RECORD, "", is_job=False, submitted=False).facts == RECORD.facts()


@pytest.mark.parametrize("state", list(JobState))
def test_a_job_is_seen_as_it_is(state: JobState) -> None:
    found = seen.with_job(RECORD, Job(state=state, message="words"), submitted=True)
    assert (found.cluster, found.job, found.detail) == (ClusterState.READY, state, "words")


def test_a_job_is_only_missed_once_it_was_there() -> None:
    assert seen.with_job(RECORD, None, submitted=True).job is JobState.ABSENT
    assert seen.with_job(RECORD, None, submitted=False).job is JobState.QUEUED


def test_the_slices_due_are_those_asked_for_until_the_record_names_them() -> None:
    asked = replace(RECORD, slices=(), slice="v6e:4x4*2", also=("v6e:2x2",))
    assert {name: str(shape) for name, shape in seen.slices_due(asked).items()} == {
        "etl-cluster-0": "v6e:4x4",
        "etl-cluster-1": "v6e:4x4",
        "etl-cluster-2": "v6e:2x2",
    }
    healed = RECORD.with_slice(0, name="etl-cluster-3")
    assert {name: str(shape) for name, shape in seen.slices_due(healed).items()} == {"etl-cluster-3": "v6e:4x4"}
