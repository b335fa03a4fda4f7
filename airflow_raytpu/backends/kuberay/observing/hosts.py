"""Which hosts of which slices of a Ray cluster are there: counted by pods, never by the operator's own counts. Pure.

KubeRay's counts have been of slices where pods were meant, and its ``state`` stays ``ready`` when pods die.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_raytpu.backends.kuberay.observing.pods import Pod
from airflow_raytpu.backends.kuberay.observing.reading import Object, number, part, parts, text
from airflow_raytpu.model.errors import SliceShapeError
from airflow_raytpu.placement.catalogue import GENERATIONS
from airflow_raytpu.placement.topology import TpuSlice

_TPU = "google.com/tpu"
_MOST = 4096
"""Slices of a group, and hosts of a slice, that are counted one by one: the largest TPU has fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One worker group as it is asked for.

    :param hosts: of one slice; ``chips``: of one host, 0 in a group without TPUs.
    """

    name: str
    slices: int
    hosts: int
    chips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One slice of TPU hosts.

    :param ready: indices of its hosts that are ready; ``scheduled``: of those that have a node.
    """

    name: str
    hosts: int
    chips: int
    ready: frozenset[int]
    scheduled: frozenset[int]

    @property
    def whole(self) -> bool:
        return len(self.ready) >= self.hosts

    @property
    def fault(self) -> str:
        """``slice tpu-0: hosts 2, 3 of 4 missing``, empty where it is whole."""
        missing = [str(host) for host in range(self.hosts) if host not in self.ready]
        if not missing:
            return ""
        if not self.chips and self.hosts == 1:
            return f"worker {self.name} missing"
        if len(missing) == self.hosts:
            return f"slice {self.name}: {'its host' if self.hosts == 1 else f'all {self.hosts} hosts'} missing"
        few = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
        return f"slice {self.name}: host{'s' * (len(missing) > 1)} {few} of {self.hosts} missing"

    def fact(self) -> dict[str, Any]:
        """As an observation's facts carry it."""
        return {"name": self.name, "hosts": self.hosts, "chips": self.hosts * self.chips, "whole": self.whole}


def groups(cluster: Object) -> list[Group]:
    """The worker groups of a RayCluster, with the slices that KubeRay would make now."""
    return [_group(each) for each in parts(cluster, "spec", "workerGroupSpecs")]


def due(cluster: Object) -> Iterator[tuple[str, TpuSlice]]:
    """The TPU slices that the cluster should have, one by one, by name. One of a shape that GKE has not is left out."""
    generations = {each.gke_accelerator: each.name for each in GENERATIONS.values()}
    for spec in parts(cluster, "spec", "workerGroupSpecs"):
        group, selector = _group(spec), part(spec, "template", "spec", "nodeSelector")
        accelerator = generations.get(text(selector, "cloud.google.com/gke-tpu-accelerator"), "")
        try:
            shape = TpuSlice(accelerator, text(selector, "cloud.google.com/gke-tpu-topology"), 1, "", group.chips)
        except SliceShapeError:
            continue
        yield from ((f"{group.name}-{index}", shape) for index in range(group.slices))


def slices(group: Group, pods: Sequence[Pod]) -> list[Slice]:
    """The slices that *group* should have, from the pods of its cluster."""
    seats: dict[int, dict[int, Pod]] = {}
    for (replica, host), pod in _seats(
        group, [pod for pod in pods if pod.group == group.name and not pod.head]
    ).items():
        seats.setdefault(replica, {})[host] = pod
    return [_slice(group, index, seats.get(index, {})) for index in _indices(group, seats)]


def _slice(group: Group, index: int, hosts: Mapping[int, Pod]) -> Slice:
    return Slice(
        name=f"{group.name}-{index}",
        hosts=group.hosts,
        chips=group.chips,
        ready=frozenset(host for host, pod in hosts.items() if pod.ready),
        scheduled=frozenset(host for host, pod in hosts.items() if pod.scheduled),
    )


def _seats(group: Group, pods: Sequence[Pod]) -> dict[tuple[int, int], Pod]:
    """Pods by slice and host. Of two in one place, as while one is replaced, the ready one counts."""
    seats: dict[tuple[int, int], Pod] = {}
    unlabelled = []
    for pod in sorted(pods, key=lambda each: (each.ready, each.scheduled, each.name)):
        host = 0 if group.hosts == 1 else pod.host
        if pod.ended:
            continue
        if pod.replica < 0 or not 0 <= host < group.hosts:
            unlabelled.append(pod)
        else:
            seats[pod.replica, host] = pod
    # An operator before 1.5 labels neither: then pods can be counted, but not told apart.
    free = ((index, host) for index in range(group.slices) for host in range(group.hosts) if (index, host) not in seats)
    seats.update(zip(free, reversed(unlabelled), strict=False))
    return seats


def _indices(group: Group, seats: Mapping[int, Mapping[int, Pod]]) -> list[int]:
    """The slices' indices: the fullest of those that have pods, and the first free ones for those that have none."""
    there = sorted(seats, key=lambda index: (-sum(pod.ready for pod in seats[index].values()), index))[: group.slices]
    free = (index for index in range(2 * _MOST) if index not in seats)
    return sorted([*there, *(index for index, _ in zip(free, range(group.slices - len(there)), strict=False))])


def _group(spec: Object) -> Group:
    low, high = number(spec, "minReplicas"), number(spec, "maxReplicas", default=_MOST)
    # KubeRay's own rule: within the bounds, and where those contradict one another the upper one.
    wanted = 0 if spec.get("suspend") is True else min(max(number(spec, "replicas"), low), high)
    container = next(iter(parts(spec, "template", "spec", "containers")), {})
    resources = part(container, "resources")
    return Group(
        name=text(spec, "groupName"),
        slices=max(0, min(wanted, _MOST)),
        hosts=max(1, min(number(spec, "numOfHosts", default=1), _MOST)),
        chips=number(resources, "limits", _TPU) or number(resources, "requests", _TPU),
    )
