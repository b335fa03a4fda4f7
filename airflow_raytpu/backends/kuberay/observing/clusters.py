"""What a RayCluster is, from its conditions, its pods and what was said about it. Pure.

Conditions first: ``status.state`` is deprecated and never falls back. ``RayClusterProvisioned`` stays true once it was,
so whether hosts are there now is counted by pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_raytpu.backends.kuberay.observing import lacks, queueing
from airflow_raytpu.backends.kuberay.observing.anatomy import Anatomy, take_apart
from airflow_raytpu.backends.kuberay.observing.causes import first_fault
from airflow_raytpu.backends.kuberay.observing.events import Event
from airflow_raytpu.backends.kuberay.observing.hosts import Slice
from airflow_raytpu.backends.kuberay.observing.pods import Pod
from airflow_raytpu.backends.kuberay.observing.reading import (
    Object,
    at,
    condition,
    going,
    line,
    moment,
    name,
    number,
    part,
    text,
)
from airflow_raytpu.model.observation import ClusterState, Fault
from airflow_raytpu.model.slices import span

DETAIL_LIMIT = 900
"""Longest detail, in characters: one line of a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A cluster as it is seen.

    :param lacking: see :class:`~airflow_raytpu.model.observation.Observation`, as are ``facts`` and ``fault``.
    :param head: its newest head pod.
    """

    state: ClusterState
    detail: str = ""
    lacking: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    fault: Fault | None = None
    head: Pod | None = None


def look(
    cluster: Object | None,
    pods: Sequence[Object],
    events: Sequence[Event],
    workloads: Sequence[Object],
    now: float,
) -> Place:
    """*cluster* at *now* (seconds since the epoch).

    :param pods: those of the namespace; others' are left aside.
    :param events: newest first.
    """
    if cluster is None:
        return Place(state=ClusterState.ABSENT)
    if going(cluster):
        return Place(state=ClusterState.STOPPING, detail=stopping(cluster, now))
    seen = take_apart(cluster, pods, events, workloads)
    # A cluster that was ready heals by itself, and others may be at work on it: only time is its judge.
    fault = None if seen.provisioned else first_fault(seen.troubles(), now)
    if _suspended(seen):
        return Place(state=ClusterState.SUSPENDED, detail=line(_suspension(seen), DETAIL_LIMIT), fault=fault)
    if seen.head_ready and (seen.whole or seen.provisioned):
        lack = line(lacks.lacking(seen), DETAIL_LIMIT)
        return Place(
            state=ClusterState.READY, detail=lack, lacking=lack, facts=facts(cluster, seen.tpu), head=seen.head
        )
    waits_for = line(lacks.missing(seen, now), DETAIL_LIMIT)
    return Place(state=ClusterState.STARTING, detail=waits_for, fault=fault, head=seen.head)


def facts(cluster: Object, slices: Sequence[Slice] = ()) -> dict[str, Any]:
    """What a ready cluster offers, with addresses as they are inside the Kubernetes cluster.

    The head's service is read, never put together from the cluster's name: KubeRay shortens long ones.
    """
    service, namespace = text(cluster, "status", "head", "serviceName"), text(cluster, "metadata", "namespace")
    host = f"{service}.{namespace}.svc" if service and namespace else text(cluster, "status", "head", "serviceIP")
    ports = part(cluster, "status", "endpoints")
    return {
        "name": name(cluster),
        "address": f"{host}:{number(ports, 'gcs-server', default=6379)}" if host else "",
        "dashboard": f"http://{host}:{number(ports, 'dashboard', default=8265)}" if host else "",
        "endpoint": f"http://{host}:{number(ports, 'serve', default=8000)}" if host else "",
        "slices": [each.fact() for each in slices],
    }


def _suspended(seen: Anatomy) -> bool:
    asked = at(seen.raw, "spec", "suspend") is True
    said = any(condition(seen.raw, f"RayCluster{word}").holds for word in ("Suspending", "Suspended"))
    return asked or said or (seen.queue is not None and not seen.queue.admitted)


def _suspension(seen: Anatomy) -> str:
    if seen.queue is not None and not seen.queue.admitted:
        return seen.queue.words
    if condition(seen.raw, "RayClusterSuspending").holds:
        return "being suspended: its pods are ending"
    return queueing.suspended(seen.raw)


def stopping(obj: Object, now: float) -> str:
    """What keeps a deletion from ending is a finalizer, if anything is."""
    finalizers = at(obj, "metadata", "finalizers")
    held = ", ".join(each for each in finalizers if isinstance(each, str)) if isinstance(finalizers, list) else ""
    since = moment(obj, "metadata", "deletionTimestamp")
    return line(f"being deleted for {span(now - since)}" + (f", held by {held}" if held else ""))
