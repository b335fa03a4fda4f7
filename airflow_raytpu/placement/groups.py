"""A cluster's worker groups in KubeRay's numbers: one TPU shape, and CPU-only groups beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_raytpu.model.errors import SliceShapeError
from airflow_raytpu.model.kuberay import CpuGroup
from airflow_raytpu.placement.plan import SlicePlan, plan
from airflow_raytpu.placement.topology import TpuSlice

__all__ = ["ClusterPlan", "CpuGroup", "WorkerGroup", "check_fits", "plan_cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    """One ``workerGroupSpec``: ``replicas`` slices (not pods) of ``num_of_hosts`` pods with ``tpus`` chips each.

    KubeRay fills in 0, 0 and 2147483647 for the replica counts, so all three are stated (CRD 1.7).

    :param tpus: ``google.com/tpu`` of a pod, as limit and as request: all chips of its node.
    """

    name: str
    replicas: int
    num_of_hosts: int
    tpus: int
    node_selector: dict[str, str]

    @property
    def pods(self) -> int:
        return self.replicas * self.num_of_hosts


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What one cluster is made of.

    :param tpu: the slices; one of them where each is a single host.
    :param single_hosts: how many single hosts there are, 0 for a multi-host shape.
    """

    tpu: SlicePlan
    cpu_groups: tuple[CpuGroup, ...] = ()
    single_hosts: int = 0

    @property
    def groups(self) -> tuple[WorkerGroup, ...]:
        """The TPU groups first: one for all multi-host slices, one for each single host.

        A replaced single host in a group of several is given a wrong index by the TPU webhook (1.3.5), hence that.
        """
        tpu_slice = self.tpu.slice
        name = f"{tpu_slice.accelerator}-{tpu_slice.topology}"
        names = [f"{name}-{number}" for number in range(self.single_hosts)] or [name]
        first = [
            WorkerGroup(
                name=each,
                replicas=tpu_slice.num_slices,
                num_of_hosts=tpu_slice.hosts,
                tpus=tpu_slice.chips_per_host,
                node_selector=self.tpu.node_selector,
            )
            for each in names
        ]
        beside = (
            WorkerGroup(name=group.name, replicas=group.replicas, num_of_hosts=1, tpus=0, node_selector={})
            for group in self.cpu_groups
        )
        return (*first, *beside)


def plan_cluster(slices: Sequence[TpuSlice], cpu_groups: Iterable[CpuGroup] = ()) -> ClusterPlan:
    """The cluster that holds *slices*; equal shapes are counted together.

    :raises SliceShapeError: there is no slice, or there are two shapes, or it is a part.
    """
    if not slices:
        raise SliceShapeError("A cluster without a slice has nothing to place on.", 'Give it one, such as "v6e:4x4".')
    first = slices[0]
    check_whole(first)
    for other in slices[1:]:
        if other.shape != first.shape or other.part_of:
            raise SliceShapeError(
                f"One cluster cannot hold both {_short(first)} and {_short(other)}: Ray picks hosts without looking at "
                "their slice's shape.",
                "Use one cluster for each shape; groups without TPUs may stand beside either.",
            )
    total = sum(each.num_slices for each in slices)
    if first.hosts == 1:
        # No job spans several of them, but a cluster may well hold several.
        return ClusterPlan(plan(first), tuple(cpu_groups), total)
    return ClusterPlan(plan(replace(first, num_slices=total)), tuple(cpu_groups))


def check_fits(job: TpuSlice, cluster: TpuSlice) -> None:
    """A job's slice is one that its cluster has, or a part of one.

    :raises SliceShapeError: another shape, or more slices than there are.
    """
    if job.whole != cluster.shape:
        raise SliceShapeError(
            f"The job asks for {_short(job)} on a cluster of {_short(cluster)}.",
            f"Leave the job's slice out to use the cluster's, or give it {_part(job, cluster)}"
            f"a cluster of {_short(job)}.",
        )
    if job.num_slices > cluster.num_slices:
        raise SliceShapeError(
            f"The job asks for {job.num_slices} slices on a cluster of {cluster.num_slices}.",
            f"Give the cluster {job}, or ask for fewer slices.",
        )


def check_whole(tpu_slice: TpuSlice) -> None:
    """:raises SliceShapeError: a cluster cannot be made of it, for it is a part of a slice."""
    if tpu_slice.part_of:
        raise SliceShapeError(
            f"{tpu_slice} is a part of a slice, and no cluster is made of parts.",
            f"Use it on a cluster of {tpu_slice.accelerator}:{tpu_slice.part_of} that others share.",
        )


def _part(job: TpuSlice, cluster: TpuSlice) -> str:
    """``v6e:2x2/4x4, or``, where the job's shape is a part of the cluster's slices."""
    try:
        return f"{TpuSlice(job.accelerator, job.topology, part_of=cluster.topology)}, or "
    except SliceShapeError:
        return ""


def _short(tpu_slice: TpuSlice) -> str:
    return str(tpu_slice).replace(f"*{tpu_slice.num_slices}", "") if tpu_slice.num_slices > 1 else str(tpu_slice)
