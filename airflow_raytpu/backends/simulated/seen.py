"""From a cluster's record and its job's state to an observation. Pure."""

from __future__ import annotations

from dataclasses import replace

from airflow_raytpu.backends.raystatuses import Job
from airflow_raytpu.backends.simulated.cluster import short_name
from airflow_raytpu.backends.simulated.state import Phase, Record
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.placement.topology import TpuSlice

_CLUSTER = {
    Phase.STARTING: ClusterState.STARTING,
    Phase.READY: ClusterState.READY,
    Phase.STOPPING: ClusterState.STOPPING,
    Phase.FAILED: ClusterState.FAILED,
}


def slices_due(record: Record) -> dict[str, TpuSlice]:
    """The slices that the cluster has or will have, by name and one by one; what was asked for comes first."""
    if record.slices:
        return {part.name: TpuSlice.parse(part.shape) for part in record.slices}
    asked = [TpuSlice.parse(text) for text in (record.slice, *record.also)]
    single = [replace(each, num_slices=1) for each in asked for _ in range(each.num_slices)]
    return {f"{short_name(record.name)}-{index}": shape for index, shape in enumerate(single)}


def cluster_state(record: Record) -> ClusterState:
    """A ready cluster is failed once none of its slices is whole and none will be."""
    if record.phase is Phase.READY and not any(part.whole or part.awaited for part in record.slices):
        return ClusterState.FAILED
    return _CLUSTER[record.phase]


def without_job(record: Record | None, lost: str, *, is_job: bool, submitted: bool) -> Observation:
    """What is seen where no job can be asked after: there is no cluster, or it does not answer for jobs (yet)."""
    if record is None or lost:
        absent = JobState.ABSENT if is_job else None
        return Observation(cluster=ClusterState.ABSENT, job=absent, detail=lost)
    state = cluster_state(record)
    ready = state is ClusterState.READY
    job = JobState.ABSENT if submitted else JobState.QUEUED
    return Observation(
        cluster=state, job=job if is_job else None, facts=record.facts() if ready else {}, detail=record.detail
    )


def with_job(record: Record, found: Job | None, *, submitted: bool) -> Observation:
    """What is seen on a ready cluster: the job, or its absence, which is loss only after it was accepted."""
    if found is None:
        state, detail = (JobState.ABSENT if submitted else JobState.QUEUED), record.detail
    else:
        state, detail = found.state, found.message or record.detail
    return Observation(cluster=cluster_state(record), job=state, facts=record.facts(), detail=detail)
