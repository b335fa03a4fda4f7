"""From a RayCluster's spec alone: which pods it makes, and which TPU slices they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from airflow_raytpu.placement.topology import TpuSlice

ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
TPU = "google.com/tpu"


@dataclass(frozen=True)
class Group:
    """One worker group.

    :param chips: of each host; 0 where it has no TPU.
    """

    name: str
    replicas: int
    hosts: int
    chips: int
    accelerator: str
    topology: str
    template: Mapping[str, Any]

    @property
    def slice(self) -> TpuSlice | None:
        """One replica; ``None`` for a group without TPUs."""
        if not self.chips:
            return None
        return TpuSlice(self.accelerator, self.topology, chips_per_host=self.chips)

    @property
    def due_hosts(self) -> int:
        """What the TPU webhook reckons that ``numOfHosts`` must be."""
        return max(prod(int(side) for side in self.topology.split("x")) // self.chips, 1)


def groups(spec: Mapping[str, Any]) -> list[Group]:
    return [_group(each) for each in spec.get("workerGroupSpecs") or ()]


def _group(stated: Mapping[str, Any]) -> Group:
    pod = stated["template"]["spec"]
    selector = pod.get("nodeSelector") or {}
    return Group(
        name=stated["groupName"],
        replicas=max(stated.get("replicas", 0), stated.get("minReplicas", 0)),
        hosts=stated.get("numOfHosts", 1),
        chips=sum(_chips(container) for container in pod["containers"]),
        accelerator=selector.get(ACCELERATOR, ""),
        topology=selector.get(TOPOLOGY, ""),
        template=stated["template"],
    )


def _chips(container: Mapping[str, Any]) -> int:
    resources = container.get("resources") or {}
    return int({**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(TPU, 0))


def slices(spec: Mapping[str, Any]) -> list[TpuSlice]:
    """Every slice that the whole cluster has, equal ones of one group as one shape."""
    found: list[TpuSlice] = []
    for group in groups(spec):
        one = group.slice
        if one is None or not group.replicas:
            continue
        if one.hosts > 1:
            many = TpuSlice(group.accelerator, group.topology, group.replicas, chips_per_host=group.chips)
            found.append(many)
        else:
            found += [one] * group.replicas
    return found
