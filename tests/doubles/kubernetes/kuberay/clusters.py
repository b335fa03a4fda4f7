"""RayClusters as KubeRay keeps them: what it makes for one, and the status it writes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.kuberay import events, rulebook
from tests.doubles.kubernetes.kuberay.pods import Pods, is_ready, owner_of
from tests.doubles.kubernetes.kuberay.shapes import groups
from tests.doubles.kubernetes.objects import random_suffix
from tests.doubles.kubernetes.refusal import Refusal
from tests.doubles.kubernetes.store import Item

ORIGIN_KIND, ORIGIN_NAME = "ray.io/originated-from-crd", "ray.io/originated-from-cr-name"
DASHBOARD, SERVE = 8265, 8000


class Clusters:
    """Everything about RayClusters of one server."""

    def __init__(self, k: Contents, pods: Pods) -> None:
        self._k = k
        self._pods = pods

    def now(self, cluster: Item) -> Item | None:
        """The object as it is now; ``None`` where it has gone, or another one has its name."""
        meta = cluster["metadata"]
        found = self._k.find("rayclusters", meta["name"], meta["namespace"])
        return found if found is not None and found["metadata"]["uid"] == meta["uid"] else None

    def child(self, parent: Item, name: str, spec: Mapping[str, Any]) -> Item:
        """The cluster of a RayJob or RayService, with its parent's labels and annotations.

        :raises Refusal: as the API server or a webhook puts it.
        """
        meta = parent["metadata"]
        origin = {ORIGIN_KIND: parent["kind"], ORIGIN_NAME: meta["name"]}
        if parent["kind"] == "RayJob":
            origin["ray.io/job-submission-mode"] = parent["spec"].get("submissionMode", "K8sJobMode")
        made: dict[str, Any] = {"name": name, "ownerReferences": [owner_of(parent)]}
        made["labels"] = {**(meta.get("labels") or {}), **origin}
        if meta.get("annotations"):
            made["annotations"] = dict(meta["annotations"])
        return self._k.put("rayclusters", {"metadata": made, "spec": dict(spec)}, meta["namespace"])

    def faults(self, cluster: Item) -> str:
        """Why the reconciler refuses it, which an Event says and nothing else; empty where it does not."""
        meta = cluster["metadata"]
        is_child = ORIGIN_KIND in (meta.get("labels") or {})
        if fault := rulebook.name_fault("RayCluster", meta["name"]):
            events.note(self._k, cluster, "InvalidRayClusterMetadata", f"The RayCluster metadata is invalid: {fault}")
            return fault
        for fault in rulebook.cluster_faults(cluster["spec"], is_child=is_child):
            self.invalid(cluster, fault)
            return fault
        return ""

    def invalid(self, cluster: Item, why: str) -> None:
        name = f"{cluster['metadata']['namespace']}/{cluster['metadata']['name']}"
        events.note(self._k, cluster, "InvalidRayClusterSpec", f"The RayCluster spec is invalid {name}: {why}")

    def furnish(self, cluster: Item) -> bool:
        """Head service, token secret and pods; whether all pods could be made."""
        meta = cluster["metadata"]
        self._service(f"{meta['name']}-head-svc", _owned(cluster), meta["namespace"])
        self.secret(cluster)
        try:
            self._pods.make(cluster)
        except Refusal as refusal:
            words = f"Failed to create worker Pod in the cluster {meta['namespace']}/{meta['name']}, {refusal.message}"
            events.note(self._k, cluster, "FailedToCreateWorkerPod", words)
            failure = _condition(self._k, "RayClusterReplicaFailure", "True", "FailedCreateWorkerPod", refusal.message)
            self._write(cluster, {"conditions": _with(cluster, failure)})
            return False
        return True

    def write_status(self, cluster: Item, **more: Any) -> Item | None:
        """Counts, conditions and state as they follow from the pods that there are."""
        now = self.now(cluster)
        if now is None:
            return None
        workers, head = self._pods.workers(now), self._pods.head(now)
        ready = sum(map(is_ready, workers))
        due = sum(group.replicas * group.hosts for group in groups(now["spec"]))
        head_ready = head is not None and is_ready(head)
        reason = "HeadPodRunningAndReady" if head_ready else "ContainersNotReady" if head else "HeadPodNotFound"
        fresh = [_condition(self._k, "HeadPodReady", str(head_ready), reason)]
        status: dict[str, Any] = {
            "desiredWorkerReplicas": due,
            "minWorkerReplicas": due,
            "availableWorkerReplicas": sum((pod.get("status") or {}).get("phase") == "Running" for pod in workers),
            "readyWorkerReplicas": ready,
            "desiredTPU": str(sum(group.replicas * group.hosts * group.chips for group in groups(now["spec"]))),
            "observedGeneration": now["metadata"]["generation"],
            "endpoints": {"dashboard": str(DASHBOARD), "gcs-server": "6379", "client": "10001", "serve": str(SERVE)},
            "head": {
                "serviceName": f"{now['metadata']['name']}-head-svc",
                "podName": f"{now['metadata']['name']}-head",
            },
        }
        if head_ready and ready == due:
            # Both latch: neither falls back when pods are lost later.
            status["state"] = "ready"
            fresh.append(_condition(self._k, "RayClusterProvisioned", "True", "AllPodRunningAndReadyFirstTime"))
        elif not is_ready_cluster(now):
            fresh.append(_condition(self._k, "RayClusterProvisioned", "False", "RayClusterPodsProvisioning"))
        return self._write(now, {**status, "conditions": _with(now, *fresh), **more})

    def suspended(self, cluster: Item, *, done: bool) -> None:
        now = self.now(cluster)
        if now is not None:
            suspending = _condition(self._k, "RayClusterSuspending", str(not done), "UserRequestedSuspend")
            suspended = _condition(self._k, "RayClusterSuspended", str(done), "UserRequestedSuspend")
            more = {"state": "suspended"} if done else {}
            self._write(now, {"conditions": _with(now, suspending, suspended), **more})

    def _write(self, cluster: Item, status: Mapping[str, Any]) -> Item | None:
        if self.now(cluster) is None:
            return None
        meta = cluster["metadata"]
        return self._k.status("rayclusters", meta["name"], status, meta["namespace"])

    def _service(self, name: str, owned: Mapping[str, Any], namespace: str) -> None:
        if self._k.find("services", name, namespace) is None:
            listed = [("dashboard", DASHBOARD), ("serve", SERVE), ("gcs-server", 6379), ("client", 10001)]
            ports = [{"name": each, "port": port, "protocol": "TCP"} for each, port in listed]
            self._k.put("services", {"metadata": {"name": name, **owned}, "spec": {"ports": ports}}, namespace)

    def secret(self, cluster: Item, token: str = "") -> None:
        """Ray's token where the spec asks for one: a random one first, *token* once that is known."""
        if (cluster["spec"].get("authOptions") or {}).get("mode") != "token":
            return
        name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
        data = {"auth_token": base64.b64encode((token or random_suffix(32)).encode()).decode()}
        if self._k.find("secrets", name, namespace) is None:
            self._k.put("secrets", {"metadata": {"name": name, **_owned(cluster)}, "data": data}, namespace)
        elif token:
            self._k.edit("secrets", name, {"data": data}, namespace)


def _owned(cluster: Item) -> dict[str, Any]:
    labels = {"ray.io/cluster": cluster["metadata"]["name"]}
    return {"ownerReferences": [owner_of(cluster)], "labels": labels}


def is_ready_cluster(cluster: Item | None) -> bool:
    return cluster is not None and (cluster.get("status") or {}).get("state") == "ready"


def _condition(k: Contents, kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    stamp = k.objects.stamp()
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp}


def _with(item: Item, *fresh: dict[str, str]) -> list[dict[str, str]]:
    """The conditions of *item* with *fresh* ones in place; one whose status is the same keeps its time."""
    kept = {each["type"]: each for each in (item.get("status") or {}).get("conditions") or ()}
    for each in fresh:
        old = kept.get(each["type"])
        if old is not None and old["status"] == each["status"]:
            each["lastTransitionTime"] = old["lastTransitionTime"]
        kept[each["type"]] = each
    return list(kept.values())
