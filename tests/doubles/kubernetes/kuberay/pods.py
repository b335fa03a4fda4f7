"""The pods of a RayCluster, and what the scheduler and the kubelet say of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.kuberay import events
from tests.doubles.kubernetes.kuberay.shapes import Group, groups
from tests.doubles.kubernetes.objects import random_suffix
from tests.doubles.kubernetes.store import Item

CLUSTER, NODE_TYPE, GROUP = "ray.io/cluster", "ray.io/node-type", "ray.io/group"
REPLICA_INDEX, REPLICA_NAME = "ray.io/worker-group-replica-index", "ray.io/worker-group-replica-name"
HOST_INDEX = "ray.io/replica-host-index"


def owner_of(item: Item) -> dict[str, Any]:
    meta = item["metadata"]
    reference = {"apiVersion": item["apiVersion"], "kind": item["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {**reference, "controller": True, "blockOwnerDeletion": True}


class Pods:
    """Everything about pods of one server."""

    def __init__(self, k: Contents) -> None:
        self._k = k

    def of(self, cluster: Item) -> list[Item]:
        """Head first, then groups, replicas and hosts in their order."""
        name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
        found = [pod for pod in self._k.items("pods", namespace) if _labels(pod).get(CLUSTER) == name]
        return sorted(found, key=_order)

    def head(self, cluster: Item) -> Item | None:
        return next((pod for pod in self.of(cluster) if _labels(pod)[NODE_TYPE] == "head"), None)

    def workers(self, cluster: Item) -> list[Item]:
        return [pod for pod in self.of(cluster) if _labels(pod)[NODE_TYPE] == "worker"]

    def make(self, cluster: Item) -> None:
        """Create the pods that are missing; a quota or a label that does not fit refuses one.

        :raises Refusal: as the API server puts it.
        """
        if self.head(cluster) is None:
            self._make(
                cluster, "head", f"{cluster['metadata']['name']}-head", cluster["spec"]["headGroupSpec"]["template"]
            )
        for group in groups(cluster["spec"]):
            for replica in range(group.replicas):
                self._make_replica(cluster, group, replica)

    def _make_replica(self, cluster: Item, group: Group, replica: int) -> None:
        there = [pod for pod in self.workers(cluster) if _place(pod)[:2] == (group.name, replica)]
        if there:
            return  # a replica is made whole or not at all
        replica_name = f"{group.name}-{random_suffix()}"
        for host in range(group.hosts):
            labels = {GROUP: group.name, REPLICA_INDEX: str(replica)}
            if group.hosts > 1:
                labels |= {REPLICA_NAME: replica_name, HOST_INDEX: str(host)}
            name = f"{cluster['metadata']['name']}-{group.name}-worker-{random_suffix()}"
            self._make(cluster, "worker", name, _with_tpu(group, replica, host), labels)

    def _make(
        self,
        cluster: Item,
        node_type: str,
        name: str,
        template: Mapping[str, Any],
        more: Mapping[str, str] | None = None,
    ) -> Item:
        stated = template.get("metadata") or {}
        # The operator's own labels win, and app.kubernetes.io/name is what the TPU webhook looks for.
        labels = {
            "app.kubernetes.io/created-by": "kuberay-operator",
            "app.kubernetes.io/name": "kuberay",
            **(stated.get("labels") or {}),
            CLUSTER: cluster["metadata"]["name"],
            NODE_TYPE: node_type,
            GROUP: "headgroup",
            **(more or {}),
        }
        meta = {"name": name, "labels": labels, "ownerReferences": [owner_of(cluster)]}
        if stated.get("annotations"):
            meta["annotations"] = dict(stated["annotations"])
        return self._k.put("pods", {"metadata": meta, "spec": template["spec"]}, cluster["metadata"]["namespace"])

    # What happens to one.

    def unschedulable(self, pod: Item, message: str, *, scales_up: bool = True) -> None:
        """No node fits; the cluster autoscaler makes one, or says that it cannot."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self._status(pod, {"phase": "Pending", "conditions": [condition]})
        events.note(self._k, pod, "FailedScheduling", message, source=events.SCHEDULER)
        if scales_up:
            words = "pod triggered scale-up: [{https://www.googleapis.com/compute/v1/projects/p/zones/z/gk3-tpu 0->1}]"
            events.note(self._k, pod, "TriggeredScaleUp", words, source=events.AUTOSCALER, normal=True)
        else:
            words = f"pod didn't trigger scale-up: {message}"
            events.note(self._k, pod, "NotTriggerScaleUp", words, source=events.AUTOSCALER, normal=True)

    def scheduled(self, pod: Item, node: str) -> None:
        self._k.edit("pods", _name(pod), {"spec": {"nodeName": node}}, _namespace(pod))
        events.note(self._k, pod, "Scheduled", f"Successfully assigned {_name(pod)} to {node}", normal=True)
        self.waiting(pod, "ContainerCreating")

    def waiting(self, pod: Item, reason: str, message: str = "") -> None:
        """``ContainerCreating``, ``ErrImagePull``, ``ImagePullBackOff``, ``CrashLoopBackOff`` ..."""
        state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
        self._status(pod, {"phase": "Pending", "conditions": conditions, "containerStatuses": _containers(pod, state)})
        if "Image" in reason:
            events.note(self._k, pod, "Failed", message or f"Error: {reason}", source=events.KUBELET)

    def running(self, pod: Item, ip: str = "10.0.0.1") -> None:
        state = {"running": {"startedAt": self._k.objects.stamp()}}
        conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "ContainersReady", "Ready")]
        status = {"phase": "Running", "podIP": ip, "conditions": conditions}
        self._status(pod, {**status, "containerStatuses": _containers(pod, state, ready=True)})

    def failed(self, pod: Item, reason: str, message: str, exit_code: int = 137) -> None:
        """``Evicted``, ``Preempted``, ``OOMKilled``, ``Error``, ``Terminated``, ``NodeLost`` ..."""
        of_container = reason if reason in {"OOMKilled", "Error", "Completed"} else "Error"
        state = {"terminated": {"exitCode": exit_code, "reason": of_container, "message": message}}
        conditions = [{"type": "Ready", "status": "False"}]
        if reason in {"Preempted", "Terminated", "NodeLost", "Evicted"}:
            target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
            conditions.append({**target, "message": message})
        status = {"phase": "Failed", "reason": reason, "message": message, "conditions": conditions}
        self._status(pod, {**status, "containerStatuses": _containers(pod, state)})

    def gone(self, pod: Item) -> None:
        if self._k.find("pods", _name(pod), _namespace(pod)) is not None:
            self._k.remove("pods", _name(pod), _namespace(pod))

    def _status(self, pod: Item, status: Mapping[str, Any]) -> None:
        self._k.status("pods", _name(pod), status, _namespace(pod))


def is_ready(pod: Item) -> bool:
    status = pod.get("status") or {}
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
    return status.get("phase") == "Running" and ready


def place(pod: Item) -> tuple[str, int, int]:
    """Group, replica and host of a worker."""
    return _place(pod)


def _with_tpu(group: Group, replica: int, host: int) -> dict[str, Any]:
    """The pod template as the TPU webhook leaves it."""
    template = copy.deepcopy(dict(group.template))
    if not group.chips:
        return template
    added = {"TPU_WORKER_ID": str(host), "TPU_NAME": f"{group.name}-{replica}"}
    for container in template["spec"]["containers"]:
        env = container.setdefault("env", [])
        env += [{"name": name, "value": value} for name, value in added.items()]
    return template


def _containers(pod: Item, state: Mapping[str, Any], *, ready: bool = False) -> list[dict[str, Any]]:
    first = pod["spec"]["containers"][0]
    entry = {"name": first["name"], "image": first.get("image", ""), "ready": ready, "restartCount": 0}
    return [{**entry, "state": dict(state), "started": ready}]


def _order(pod: Item) -> tuple[Any, ...]:
    return (_labels(pod).get(NODE_TYPE) != "head", *_place(pod))


def _place(pod: Item) -> tuple[str, int, int]:
    labels = _labels(pod)
    return labels.get(GROUP, ""), int(labels.get(REPLICA_INDEX, 0)), int(labels.get(HOST_INDEX, 0))


def _labels(pod: Item) -> Mapping[str, str]:
    return pod["metadata"].get("labels") or {}


def _name(pod: Item) -> str:
    return str(pod["metadata"]["name"])


def _namespace(pod: Item) -> str:
    return str(pod["metadata"]["namespace"])
