"""Objects as a real API server with KubeRay 1.7, GKE and Kueue has them: plain JSON, by builders. Times are seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

T0 = 1_764_000_000.0
NAMESPACE = "ml"
IMAGE = "europe-docker.pkg.dev/acme/ray/tpu:2.60"

Object = dict[str, Any]


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def meta(name: str, *, at: float = T0, owner: Mapping[str, Any] | None = None, **more: Any) -> Object:
    owners = [{"uid": owner["metadata"]["uid"], "kind": owner["kind"], "controller": True}] if owner else []
    return {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"uid-{name}",
        "creationTimestamp": stamp(at),
        "generation": 1,
        **({"ownerReferences": owners} if owners else {}),
        **more,
    }


def condition(kind: str, status: str, reason: str = "", message: str = "", *, at: float = T0) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": stamp(at),
    }


def group(
    name: str = "tpu", *, replicas: int = 1, hosts: int = 4, chips: int = 4, topology: str = "4x4", **more: Any
) -> Object:
    resources = {"cpu": "24", **({"google.com/tpu": str(chips)} if chips else {})}
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": replicas,
        "maxReplicas": replicas,
        "numOfHosts": hosts,
        "template": {
            "spec": {
                "nodeSelector": {
                    "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
                    "cloud.google.com/gke-tpu-topology": topology,
                }
                if chips
                else {},
                "containers": [
                    {"name": "ray", "image": IMAGE, "resources": {"limits": resources, "requests": resources}}
                ],
            }
        },
        **more,
    }


def cluster(
    name: str = "dg-shared-abcdefgh",
    *groups: Object,
    provisioned: bool = False,
    head_ready: bool = False,
    conditions: Sequence[Object] = (),
    status: bool = True,
    suspend: bool | None = None,
    at: float = T0,
    owner: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> Object:
    """A RayCluster.

    :param status: the operator has seen it.
    """
    made: Object = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": meta(name, at=at, owner=owner, **metadata),
        "spec": {
            "workerGroupSpecs": list(groups or (group(),)),
            **({} if suspend is None else {"suspend": suspend}),
        },
    }
    if status:
        made["status"] = {
            "observedGeneration": made["metadata"]["generation"],
            "head": {"serviceName": f"{name}-head-svc", "serviceIP": "10.0.0.7", "podIP": "10.8.0.2"},
            "endpoints": {"gcs-server": "6379", "dashboard": "8265", "serve": "8000", "client": "10001"},
            "conditions": [
                condition(
                    "HeadPodReady", str(head_ready), "HeadPodRunningAndReady" if head_ready else "HeadPodNotFound"
                ),
                condition(
                    "RayClusterProvisioned",
                    str(provisioned),
                    "AllPodRunningAndReadyFirstTime" if provisioned else "RayClusterPodsProvisioning",
                ),
                *conditions,
            ],
        }
    return made


def pod(
    of: Mapping[str, Any],
    *,
    group: str = "tpu",
    replica: int = 0,
    host: int | None = 0,
    head: bool = False,
    ready: bool = True,
    unschedulable: str = "",
    waiting: tuple[str, str] | None = None,
    restarts: int = 0,
    terminated: Object | None = None,
    last: Object | None = None,
    labelled: bool = True,
    at: float = T0,
    **status: Any,
) -> Object:
    """One pod of a RayCluster.

    :param waiting: reason and message of its Ray container, once it has a node.
    :param terminated: how that container ended; ``last``: how the one before it did.
    """
    suffix = "head-x7k2p" if head else f"{group}-worker-{replica}{'' if host is None else host}qq"
    labels = {"ray.io/cluster": of["metadata"]["name"], "ray.io/node-type": "head" if head else "worker"}
    labels["ray.io/group"] = "headgroup" if head else group
    if not head and labelled:
        labels["ray.io/worker-group-replica-index"] = str(replica)
        if host is not None:
            labels["ray.io/replica-host-index"] = str(host)
    placed = not unschedulable
    state: Object = {"running": {"startedAt": stamp(at + 30)}}
    if terminated:
        state = {"terminated": terminated}
    elif waiting:
        state = {"waiting": {"reason": waiting[0], "message": waiting[1]}}
    well = ready and placed and not waiting and not terminated
    ray = {"name": "ray", "ready": well, "restartCount": restarts, "state": state, "lastState": {}}
    if last:
        ray["lastState"] = {"terminated": last}
    sidecar = {"name": "gke-gcsfuse-sidecar", "ready": True, "restartCount": 0, "state": {"running": {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(f"{of['metadata']['name']}-{suffix}", at=at, owner=of, labels=labels),
        "spec": {
            "containers": [{"name": "ray"}, {"name": "gke-gcsfuse-sidecar"}],
            **({"nodeName": "gke-tpu-1"} if placed else {}),
        },
        "status": {
            "phase": "Running" if well else "Pending",
            "conditions": [
                condition("PodScheduled", str(placed), "" if placed else "Unschedulable", unschedulable, at=at),
                condition("Ready", str(well), at=at),
            ],
            "containerStatuses": [sidecar, ray] if placed else [],
            **status,
        },
    }


def pods(of: Mapping[str, Any], *, replicas: int = 1, hosts: int = 4, **more: Any) -> list[Object]:
    """A ready head and *replicas* whole slices."""
    workers = [pod(of, replica=replica, host=host, **more) for replica in range(replicas) for host in range(hosts)]
    return [pod(of, head=True), *workers]


def event(
    about: Mapping[str, Any],
    reason: str,
    message: str,
    *,
    first: float = T0,
    last: float | None = None,
    kind: str = "Warning",
) -> Object:
    uid = about["metadata"]["uid"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{uid}.{abs(hash((reason, message, first))):x}", "creationTimestamp": stamp(first)},
        "involvedObject": {"kind": about["kind"], "name": about["metadata"]["name"], "uid": uid},
        "reason": reason,
        "message": message,
        "type": kind,
        "firstTimestamp": stamp(first),
        "lastTimestamp": stamp(first if last is None else last),
    }


def job(
    deployment: str = "",
    status: str = "",
    *,
    reason: str = "",
    message: str = "",
    name: str = "dg-digits-train-abcdefgh",
    spec: Mapping[str, Any] | None = None,
    at: float = T0,
    metadata: Mapping[str, Any] | None = None,
    **more: Any,
) -> Object:
    said = {"jobDeploymentStatus": deployment, "jobStatus": status, "reason": reason, "message": message, **more}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": meta(name, at=at, **(metadata or {})),
        "spec": {"backoffLimit": 0, "shutdownAfterJobFinishes": True, **(spec or {})},
        # An operator that has not looked yet has written nothing at all.
        **({"status": {key: value for key, value in said.items() if value != ""}} if any(said.values()) else {}),
    }


def service(
    *conditions: Object,
    active: Mapping[str, tuple[str, str]] | None = None,
    pending: Mapping[str, tuple[str, str]] | None = None,
    name: str = "dg-serve-abcdefgh",
    observed: int = 1,
    spec: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> Object:
    """A RayService.

    :param active: application to status and message, of the version that serves; ``pending`` of the next.
    """

    def version(apps: Mapping[str, tuple[str, str]] | None, cluster_name: str) -> Object:
        if apps is None:
            return {}
        statuses = {app: {"status": status, "message": message} for app, (status, message) in apps.items()}
        return {"rayClusterName": cluster_name, "applicationStatuses": statuses}

    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": meta(name, **metadata),
        "spec": dict(spec or {}),
        "status": {
            "observedGeneration": observed,
            "conditions": list(conditions),
            "activeServiceStatus": version(active, f"{name}-aaaaa"),
            "pendingServiceStatus": version(pending, f"{name}-bbbbb"),
        },
    }


def workload(
    owner: Mapping[str, Any],
    *conditions: Object,
    queue: str = "user-queue",
    priority: int = 0,
    active: bool = True,
    checks: Sequence[Object] = (),
    at: float = T0,
    name: str = "",
    **status: Any,
) -> Object:
    """Kueue's workload of *owner*."""
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": meta(name or f"rayjob-{owner['metadata']['name']}-1a2b3", at=at, owner=owner),
        "spec": {"queueName": queue, "priority": priority, "active": active},
        "status": {"conditions": list(conditions), "admissionChecks": list(checks), **status},
    }
