"""What one simulated cluster is made of: its slices with their hosts, and a Ray node for each. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from airflow_raytpu.backends.simulated import environment
from airflow_raytpu.backends.simulated.environment import ClusterPlace
from airflow_raytpu.backends.simulated.nodes import NodePlan
from airflow_raytpu.backends.simulated.processes import NODES
from airflow_raytpu.backends.simulated.state import Arrivals, Host, Slice
from airflow_raytpu.placement.topology import TpuSlice

_HEAD_STORE, _HOST_STORE = 200_000_000, 100_000_000
_HEAD_CPUS, _HOST_CPUS = 2, 4


def slices(due: Mapping[str, TpuSlice], place: ClusterPlace, arrivals: Arrivals) -> tuple[Slice, ...]:
    """The slices *due*, by name, as they are before any node runs; those that are late are awaited."""
    number = itertools.count()
    with_cluster = 0 if arrivals.late is None else len(due) - arrivals.late
    return tuple(
        Slice(
            name=name,
            shape=str(shape),
            chips_per_host=shape.chips_per_host,
            hosts=tuple(
                Host(worker_id=worker, ip=place.host_ip(next(number)), alive=index < with_cluster)
                for worker in range(shape.hosts)
            ),
            awaited="" if index < with_cluster else "is not there yet",
        )
        for index, (name, shape) in enumerate(due.items())
    )


def head(place: ClusterPlace, dashboard_port: int) -> NodePlan:
    return NodePlan(
        ip=place.head_ip,
        temp=_nodes(place) / "h",
        gcs=place.address,
        cpus=_HEAD_CPUS,
        object_store=_HEAD_STORE,
        dashboard_port=dashboard_port,
    )


def host(place: ClusterPlace, part: Slice, index: int, worker: int, profiler_port: int) -> NodePlan:
    """Host *worker* of *part*, the *index*-th slice."""
    return NodePlan(
        ip=part.hosts[worker].ip,
        temp=_nodes(place) / f"{index}.{worker}",
        gcs=place.address,
        cpus=_HOST_CPUS,
        chips=part.chips_per_host,
        object_store=_HOST_STORE,
        environment=environment.host_environment(TpuSlice.parse(part.shape), part.name, worker, profiler_port),
    )


def _nodes(place: ClusterPlace) -> Path:
    return place.folder / NODES
