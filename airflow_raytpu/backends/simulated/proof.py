"""The proof that slices are whole, from Ray's own node table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice

_SLICE, _WORKER, _TOPOLOGY, _POD_TYPE, _ACCELERATOR = (
    "ray.io/tpu-slice-name",
    "ray.io/tpu-worker-id",
    "ray.io/tpu-topology",
    "ray.io/tpu-pod-type",
    "ray.io/accelerator-type",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """One row of Ray's node table.

    :param resources: in Ray's units: chips under ``TPU``.
    """

    ip: str
    alive: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceShould:
    """What every host of one slice must show (labels and head resource: Ray 2.60, ``accelerators/tpu.py``)."""

    name: str
    hosts: int
    chips_per_host: int
    labels: Mapping[str, str]
    head_resource: str

    @classmethod
    def of(cls, name: str, tpu_slice: TpuSlice) -> SliceShould:
        planned = plan(tpu_slice)
        return cls(
            name=name,
            hosts=tpu_slice.hosts,
            chips_per_host=tpu_slice.chips_per_host,
            labels={
                _TOPOLOGY: tpu_slice.topology,
                _POD_TYPE: planned.pod_type,
                _ACCELERATOR: planned.accelerator_type,
            },
            head_resource=f"TPU-{planned.pod_type}-head",
        )


def faults(nodes: Iterable[RayNode], slices: Iterable[SliceShould]) -> list[str]:
    """What keeps *slices* from being whole, each in one sentence without a full stop; empty is the proof."""
    living = [node for node in nodes if node.alive]
    return [fault for should in slices for fault in _faults_of(should, living)]


def _faults_of(should: SliceShould, living: list[RayNode]) -> list[str]:
    hosts = [node for node in living if node.labels.get(_SLICE) == should.name]
    found = sorted(node.labels.get(_WORKER, "none") for node in hosts)
    wanted = sorted(str(number) for number in range(should.hosts))
    if found != wanted:
        return [f"slice {should.name} has worker ids {_list(found)} where {_list(wanted)} are due"]
    return [fault for node in hosts for fault in _faults_at(should, node)]


def _faults_at(should: SliceShould, node: RayNode) -> list[str]:
    worker = node.labels[_WORKER]
    where = f"host {worker} of slice {should.name}"
    found = [
        f"{where} says {label} is {node.labels.get(label, 'nothing')} where {value} is due"
        for label, value in should.labels.items()
        if node.labels.get(label) != value
    ]
    heads = {"0": 1.0}.get(worker, 0.0)
    for resource, amount in (("TPU", float(should.chips_per_host)), (should.head_resource, heads)):
        if node.resources.get(resource, 0.0) != amount:
            found.append(f"{where} has {node.resources.get(resource, 0.0):g} {resource} where {amount:g} is due")
    return found


def _list(words: list[str]) -> str:
    return ", ".join(words) or "none"
