"""From the objects of Kubernetes to an observation. Pure; no status word of Ray or Kubernetes is seen above this room.

One function for each thing that can be asked for: a cluster, a RayJob with its own cluster, a RayService, and a job
that Ray's own API carries out on a cluster; :func:`observe` chooses. Objects are the API's plain JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_raytpu.backends.kuberay.observing import clusters, events, hosts, jobs, lacks, queueing, services
from airflow_raytpu.backends.kuberay.observing.causes import first_fault
from airflow_raytpu.backends.kuberay.observing.clusters import DETAIL_LIMIT, Place
from airflow_raytpu.backends.kuberay.observing.reading import (
    Object,
    at,
    belongs,
    condition,
    going,
    line,
    name,
    text,
    uid,
)
from airflow_raytpu.backends.raystatuses import Job
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.slices import span
from airflow_raytpu.placement.topology import TpuSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the API server has, as of one moment.

    :param job: the RayJob, ``None`` where there is none; ``cluster`` and ``service`` likewise. The cluster of a job or
        a service is the one that its status names, see :func:`cluster_of`.
    :param pods: of the cluster, or of the whole namespace: those of others are left aside, as with ``events`` and
        Kueue's ``workloads``.
    """

    job: Object | None = None
    cluster: Object | None = None
    service: Object | None = None
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    workloads: Sequence[Object] = ()


def observe(seen: Seen, request: RayRequest, now: float) -> Observation:
    """What *seen* is for *request* at *now* (seconds since the epoch), as far as Kubernetes' objects tell."""
    if request.kind is Kind.CLUSTER:
        return _as_asked(of_cluster(seen, now), request)
    if not request.owns_cluster:
        return of_job_on_cluster(seen, None, now, submitted=False, asked=False)
    return of_service(seen, now) if request.kind is Kind.SERVE else of_job(seen, now)


def of_cluster(seen: Seen, now: float) -> Observation:
    """A request that is a cluster and no more."""
    return _observation(_place(seen, now), None)


def of_job_on_cluster(seen: Seen, found: Job | None, now: float, *, submitted: bool, asked: bool = True) -> Observation:
    """A job that Ray's Jobs API carries out.

    :param found: what that API says of it.
    :param submitted: it was accepted once, so that its absence is loss.
    :param asked: the API was asked at all, and answered.
    """
    return _on_cluster(_place(seen, now), found, submitted=submitted, asked=asked)


def of_rollout(seen: Seen, found: Job | None, now: float, *, submitted: bool, asked: bool = True) -> Observation:
    """A job that Ray's Jobs API carries out on the cluster of a RayService; else as :func:`of_job_on_cluster`.

    Whether the service's applications are well is for the job to say: it may be there to mend them.
    """
    return _on_cluster(_services_place(seen, now), found, submitted=submitted, asked=asked)


def _on_cluster(place: Place, found: Job | None, *, submitted: bool, asked: bool) -> Observation:
    if found is not None:
        return _observation(replace(place, fault=None), found.state, found.message)
    if not submitted:
        absent = place.state is ClusterState.ABSENT
        return _observation(place, JobState.ABSENT if absent else JobState.QUEUED)
    unknown = not asked and place.state in {ClusterState.STARTING, ClusterState.READY}
    return _observation(replace(place, fault=None), JobState.UNRECOGNISED if unknown else JobState.ABSENT)


def of_job(seen: Seen, now: float, found: Job | None = None, *, missed: bool = False) -> Observation:
    """A RayJob with a cluster of its own.

    :param found: what Ray itself says of the job, where it was asked; it outruns KubeRay, and outlasts an operator that
        has died.
    :param missed: Ray was asked and knows no such job.
    """
    if seen.job is None:
        return Observation(cluster=ClusterState.ABSENT, job=JobState.ABSENT)
    standing, place = jobs.standing(seen.job), _jobs_place(seen, seen.job, now)
    state, said = standing.state, standing.detail
    if state is JobState.RUNNING:
        lost = _head_lost(seen.job, place) or ("Ray knows no such job: its head began anew" if missed else "")
        state, said = (JobState.ABSENT, lost) if lost else (state, said)
    if found is not None and found.state.ended and not standing.state.ended:
        state, said = found.state, found.message
    if state is JobState.QUEUED or standing.fault is not None:
        return _observation(replace(place, fault=standing.fault or place.fault), state, said)
    # What ails the cluster matters no more once the job has run; the job's own words say what became of it.
    place = replace(place, fault=None, detail="" if state.ended else place.detail)
    return replace(_observation(place, state, said), began=jobs.started_at(seen.job))


def of_service(seen: Seen, now: float) -> Observation:
    """A RayService, judged as a cluster is: ready, or not yet."""
    service = seen.service
    if service is None:
        return Observation(cluster=ClusterState.ABSENT)
    if going(service):
        return Observation(cluster=ClusterState.STOPPING, detail=clusters.stopping(service, now))
    state, under = services.state(service), _place(seen, now)
    if state is ClusterState.READY:
        offers = services.facts(service, under.facts or clusters.facts(seen.cluster or {}))
        return Observation(cluster=state, facts=offers)
    happened = events.newest_first(seen.events)
    own = events.standing(events.of_object(happened, "RayService", name(service), uid(service)))
    queue = queueing.standing(seen.workloads, {uid(service)} - {""})
    words = [services.detail(service), *(each.words for each in own), under.detail]
    words.append(lacks.silence(service, happened, now))
    if queue is not None and not queue.admitted:
        state, words = ClusterState.SUSPENDED, [queue.words, *words]
    troubles = [*own, *(queue.troubles if queue else ())]
    fault = services.fault(service, now) or first_fault(troubles, now) or under.fault
    return Observation(cluster=ClusterState.FAILED if fault else state, detail=_joined(*words), fault=fault)


def cluster_of(obj: Object) -> str:
    """Name of the RayCluster under a RayJob or RayService; empty while there is none. A retried job's changes."""
    return text(obj, "status", "rayClusterName") or services.cluster_name(obj)


def is_running(job: Object) -> bool:
    """Ray has the job of this RayJob, and it has not ended."""
    return is_submitted(job) and not jobs.standing(job).state.ended


def is_submitted(obj: Object) -> bool:
    """Ray has, or had, the job of this RayJob or an application of this RayService."""
    return jobs.is_submitted(obj) or services.is_submitted(obj)


def is_ready(cluster: Object) -> bool:
    """Its Ray can be asked. Whether its slices are whole is another question."""
    settled = condition(cluster, "RayClusterProvisioned").holds and condition(cluster, "HeadPodReady").holds
    return bool(settled) and not going(cluster)


def was_ready(cluster: Object) -> bool:
    """It was ready once, whatever has become of it since: somebody may have been told of it."""
    latched = condition(cluster, "RayClusterProvisioned").holds is True
    # The condition goes where Kueue suspends the cluster.
    return latched or bool(text(cluster, "status", "stateTransitionTimes", "ready"))


def slices_due(cluster: Object) -> dict[str, TpuSlice]:
    """The TPU slices that a RayCluster has or will have, one by one, by the names that Ray gives them."""
    return dict(hosts.due(cluster))


def _place(seen: Seen, now: float) -> Place:
    return clusters.look(seen.cluster, seen.pods, events.newest_first(seen.events), seen.workloads, now)


def _jobs_place(seen: Seen, job: Object, now: float) -> Place:
    """The cluster under a RayJob, and where the job itself keeps it from coming up."""
    if going(job):
        return Place(state=ClusterState.STOPPING, detail=clusters.stopping(job, now))
    standing, queue = jobs.standing(job), queueing.standing(seen.workloads, {uid(job)} - {""})
    if queue is not None and not queue.admitted:
        return Place(state=ClusterState.SUSPENDED, detail=queue.words, fault=first_fault(queue.troubles, now))
    if standing.place is not None:
        waits = standing.place is ClusterState.SUSPENDED
        return Place(state=standing.place, detail=queueing.suspended(job) if waits else "")
    cluster = seen.cluster
    if cluster is None or not belongs(cluster, job):
        return _without_cluster(seen, job, now)
    place = _place(seen, now)
    if at(cluster, "spec", "suspend") is True:
        since = f" {span(now - queue.admitted_at)} ago" if queue and queue.admitted_at else ""
        return replace(place, detail=f"its cluster is still suspended, though the job was admitted{since}")
    return place


def _services_place(seen: Seen, now: float) -> Place:
    """The cluster under a RayService, and where the service itself keeps it from coming up."""
    service = seen.service
    if service is None:
        return Place(state=ClusterState.ABSENT)
    if going(service):
        return Place(state=ClusterState.STOPPING, detail=clusters.stopping(service, now))
    cluster = seen.cluster
    if cluster is not None and belongs(cluster, service):
        place = _place(seen, now)
        return replace(place, facts=services.facts(service, place.facts)) if place.facts else place
    above = of_service(replace(seen, cluster=None), now)
    waits = above.cluster is ClusterState.SUSPENDED
    state = ClusterState.SUSPENDED if waits else ClusterState.STARTING
    return Place(state=state, detail=above.detail, fault=above.fault)


def _without_cluster(seen: Seen, job: Object, now: float) -> Place:
    """Before its cluster is made, or when that is gone."""
    state = jobs.standing(job).state
    if state.ended or (state is JobState.RUNNING and cluster_of(job)):
        return Place(state=ClusterState.ABSENT)
    happened = events.newest_first(seen.events)
    own = events.standing(events.of_object(happened, "RayJob", name(job), uid(job)))
    words = [each.words for each in own] or [lacks.silence(job, happened, now) or "its cluster is not made yet"]
    return Place(state=ClusterState.STARTING, detail=_joined(*words), fault=first_fault(own, now))


def _head_lost(job: Object, place: Place) -> str:
    """Why the job can be no more: its driver runs in the head pod and ends with it. Empty where the head is well."""
    head, started = place.head, jobs.started_at(job)
    if head is None or not (head.down or (started and head.started_at > started)):
        return ""
    return f"the head pod was lost, and the driver with it: {head.lost or 'it began anew'}"


def _joined(*words: str) -> str:
    return line("; ".join(dict.fromkeys(filter(None, words))), DETAIL_LIMIT)


def _as_asked(seen: Observation, request: RayRequest) -> Observation:
    """*seen*, which lacks its slices where somebody changed the groups of hosts after the cluster was made."""
    if seen.cluster is not ClusterState.READY or seen.lacking or not request.slice:
        return seen
    asked = TpuSlice.parse(request.slice)
    for each in seen.facts["slices"]:
        if each["hosts"] != asked.hosts:
            lack = f"slice {each['name']} has {each['hosts']} of {asked.hosts} hosts: its worker group was changed"
            return replace(seen, lacking=lack, detail=lack)
    return seen


def _observation(place: Place, job: JobState | None, said: str = "") -> Observation:
    return Observation(
        cluster=ClusterState.FAILED if place.fault else place.state,
        job=job,
        facts=place.facts,
        detail=_joined(said, place.detail),
        lacking=place.lacking,
        fault=place.fault,
    )
