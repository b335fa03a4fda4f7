"""A RayCluster taken apart: which pods, slices, events and queue are its own. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_raytpu.backends.kuberay.observing import events as happenings
from airflow_raytpu.backends.kuberay.observing import hosts, queueing
from airflow_raytpu.backends.kuberay.observing import pods as podding
from airflow_raytpu.backends.kuberay.observing.causes import Trouble
from airflow_raytpu.backends.kuberay.observing.events import Event
from airflow_raytpu.backends.kuberay.observing.hosts import Slice
from airflow_raytpu.backends.kuberay.observing.pods import Pod
from airflow_raytpu.backends.kuberay.observing.reading import Object, belongs, condition, name, text, uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """A cluster and what belongs to it.

    :param tpu: slices of TPU hosts; ``others``: of worker groups without any, one host each as a rule.
    """

    raw: Object
    pods: tuple[Pod, ...]
    events: tuple[Event, ...]
    tpu: tuple[Slice, ...]
    others: tuple[Slice, ...]
    queue: queueing.Standing | None

    @property
    def head(self) -> Pod | None:
        heads = [pod for pod in self.pods if pod.head]
        return max(heads, key=lambda pod: (pod.ready, not pod.ended, pod.started_at, pod.name), default=None)

    @property
    def slices(self) -> tuple[Slice, ...]:
        return (*self.tpu, *self.others)

    @property
    def head_ready(self) -> bool:
        return self.head is not None and self.head.ready

    @property
    def whole(self) -> bool:
        return all(each.whole for each in self.slices)

    @property
    def provisioned(self) -> bool:
        return condition(self.raw, "RayClusterProvisioned").holds is True

    def own_troubles(self) -> Iterator[Trouble]:
        """Those of the cluster object itself."""
        yield from happenings.standing([each for each in self.events if each.kind == "RayCluster"])
        failure = condition(self.raw, "RayClusterReplicaFailure")
        if failure.holds:
            # An event is forgotten after an hour; the condition stays as long as it is so.
            yield Trouble(
                reason="FailedToCreateWorkerPod", message=failure.message, who="its pods", since=failure.since
            )

    def troubles(self) -> Iterator[Trouble]:
        """Those of the object, its pods and its place in a queue."""
        yield from self.own_troubles()
        yield from (trouble for pod in self.pods for trouble in pod.troubles)
        yield from self.queue.troubles if self.queue and not self.queue.admitted else ()


def take_apart(
    cluster: Object, pods: Sequence[Object], events: Sequence[Event], workloads: Sequence[Object]
) -> Anatomy:
    mine = [podding.read(each, events) for each in pods if _is_of(each, cluster)]
    uids = {pod.uid for pod in mine}
    slices = [(group, hosts.slices(group, mine)) for group in hosts.groups(cluster)]
    return Anatomy(
        raw=cluster,
        pods=tuple(mine),
        events=tuple(each for each in events if _is_about(each, cluster, uids)),
        tpu=tuple(each for group, own in slices if group.chips for each in own),
        others=tuple(each for group, own in slices if not group.chips for each in own),
        queue=queueing.standing(workloads, {uid(cluster)} - {""}),
    )


def _is_of(pod: Object, cluster: Object) -> bool:
    return text(pod, "metadata", "labels", podding.CLUSTER) == name(cluster) != "" and belongs(pod, cluster)


def _is_about(event: Event, cluster: Object, pods: set[str]) -> bool:
    # A pod that is gone is known by its name alone, which begins with the cluster's.
    if event.kind == "Pod":
        return event.uid in pods or event.about.startswith(f"{name(cluster)}-")
    return event.is_of("RayCluster", name(cluster), uid(cluster))
