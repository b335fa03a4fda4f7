"""What KubeRay does for the tests of the backend, which have an API server and a dashboard, and no KubeRay."""

from __future__ import annotations

import base64
import time

from airflow_raytpu.backends.kuberay import reach
from airflow_raytpu.backends.kuberay.backend import KubeRayBackend
from airflow_raytpu.backends.kuberay.reach import Reach, Way
from airflow_raytpu.model.request import RayRequest
from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.doubles.ray_dashboard import RayDashboard


def open_(k: FakeKubernetes, token: str = "") -> KubeRayBackend:
    return KubeRayBackend(TestAccess(k.url, token or k.token), "default", "tests", Reach(way=Way.PROXY))


def come_up(k: FakeKubernetes, name: str, ray: RayDashboard | None = None) -> None:
    """What KubeRay does once every pod of a RayCluster is ready."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    cluster = k.find("rayclusters", name)
    assert cluster is not None
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": name, "uid": cluster["metadata"]["uid"]}
    labels = {**cluster["metadata"]["labels"], "ray.io/cluster": name}
    group = cluster["spec"]["workerGroupSpecs"][0]
    pods = {"head": {"ray.io/node-type": "head", "ray.io/group": "headgroup"}}
    for replica in range(group["replicas"]):
        for host in range(group["numOfHosts"]):
            pods[f"{group['groupName']}-{replica}-{host}"] = {
                "ray.io/node-type": "worker",
                "ray.io/group": group["groupName"],
                "ray.io/worker-group-replica-index": str(replica),
                "ray.io/worker-group-replica-name": f"{group['groupName']}-{replica}",
                "ray.io/replica-host-index": str(host),
            }
    for pod, own in pods.items():
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        body = {
            "metadata": {"name": f"{name}-{pod}", "labels": {**labels, **own}, "ownerReferences": [owner]},
            "spec": {"nodeName": f"node-{pod}", "containers": [{"name": "ray", "image": "ray:1"}]},
            "status": {"phase": "Running", "conditions": [ready]},
        }
        k.put("pods", body)
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now}
        for kind in ("HeadPodReady", "RayClusterProvisioned")
    ]
    status = {"conditions": conditions, "state": "ready", "head": {"serviceName": f"{name}-head-svc"}}
    k.status("rayclusters", name, status)
    if ray is not None:
        token = base64.b64encode(ray.token.encode()).decode()
        k.put("secrets", {"metadata": {"name": name}, "data": {"auth_token": token}})
        k.serve(f"{name}-head-svc", {reach.DASHBOARD_PORT: ray.url})


def start_child(k: FakeKubernetes, job: RayRequest) -> str:
    """What KubeRay does first with a RayJob."""
    top = k.find("rayjobs", job.name)
    assert top is not None
    name = f"{job.name}-abcde"
    owner = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "name": job.name,
        "uid": top["metadata"]["uid"],
        "controller": True,
    }
    meta = {
        "name": name,
        "labels": top["metadata"]["labels"],
        "annotations": top["metadata"]["annotations"],
        "ownerReferences": [owner],
    }
    k.put("rayclusters", {"metadata": meta, "spec": top["spec"]["rayClusterSpec"]})
    status = {"jobDeploymentStatus": "Initializing", "rayClusterName": name, "jobId": job.name}
    k.status("rayjobs", job.name, status)
    return name
