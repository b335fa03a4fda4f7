"""RayJobs as KubeRay keeps them: the statuses it writes, in the order in which it writes them."""

from __future__ import annotations

from typing import Any

from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.kuberay import events, rulebook
from tests.doubles.kubernetes.kuberay.clusters import DASHBOARD, Clusters
from tests.doubles.kubernetes.objects import random_suffix
from tests.doubles.kubernetes.refusal import Refusal
from tests.doubles.kubernetes.store import Item

FINALIZER = "ray.io/rayjob-finalizer"
ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}
OVER = {"Complete", "Failed"}
_SOURCE = "rayjob-controller"


class Jobs:
    """Everything about RayJobs of one server."""

    def __init__(self, k: Contents, clusters: Clusters) -> None:
        self._k = k
        self._clusters = clusters

    def now(self, job: Item) -> Item | None:
        meta = job["metadata"]
        found = self._k.find("rayjobs", meta["name"], meta["namespace"])
        return found if found is not None and found["metadata"]["uid"] == meta["uid"] else None

    def cluster(self, job: Item) -> Item | None:
        """The cluster that its status names."""
        name = (job.get("status") or {}).get("rayClusterName")
        return self._k.find("rayclusters", name, job["metadata"]["namespace"]) if name else None

    def faults(self, job: Item) -> str:
        """Refuse a job that breaks a rule, as its status then says; why, empty where it does not."""
        for fault in rulebook.job_faults(job["metadata"]["name"], job["spec"]):
            self.invalid(job, fault)
            return fault
        return ""

    def invalid(self, job: Item, why: str) -> None:
        name = f"{job['metadata']['namespace']}/{job['metadata']['name']}"
        message = f"The RayJob spec is invalid {name}: {why}"
        events.note(self._k, job, "InvalidRayJobSpec", message, source=_SOURCE)
        self.write(job, jobDeploymentStatus="ValidationFailed", reason="ValidationFailed", message=message)

    def initialize(self, job: Item) -> None:
        """Take the job in hand: finalizer, its id and its cluster's name, and the clock starts."""
        meta = job["metadata"]
        finalizers = meta.get("finalizers") or []
        if FINALIZER not in finalizers:
            self._k.edit(
                "rayjobs", meta["name"], {"metadata": {"finalizers": [*finalizers, FINALIZER]}}, meta["namespace"]
            )
        selector = job["spec"].get("clusterSelector") or {}
        self.write(
            job,
            jobDeploymentStatus="Initializing",
            jobStatus="",
            jobId=job["spec"].get("jobId") or f"{meta['name']}-{random_suffix()}",
            rayClusterName=selector.get("ray.io/cluster") or f"{meta['name']}-{random_suffix()}",
            startTime=self._k.objects.stamp(),
            endTime=None,
            reason=None,
            message=None,
        )

    def make_cluster(self, job: Item) -> Item | None:
        """Its cluster, made where it is not there; ``None`` where that is refused, which an Event says."""
        found = self.cluster(job)
        if found is not None:
            return found
        name = job["status"]["rayClusterName"]
        try:
            return self._clusters.child(job, name, job["spec"]["rayClusterSpec"])
        except Refusal as refusal:
            where = f"{job['metadata']['namespace']}/{name}"
            words = f"Failed to create RayCluster {where}: {refusal.message}"
            events.note(self._k, job, "FailedToCreateRayCluster", words, source=_SOURCE)
            return None

    def note_cluster(self, job: Item, status: Any) -> None:
        self.write(job, rayClusterStatus=status)

    def submitted(self, job: Item) -> None:
        cluster = job["status"]["rayClusterName"]
        url = f"{cluster}-head-svc.{job['metadata']['namespace']}.svc.cluster.local:{DASHBOARD}"
        self.write(job, jobDeploymentStatus="Running", dashboardURL=url)

    def seen(self, job: Item, status: str, message: str = "", **times: str) -> None:
        """What the dashboard says of it."""
        info = {f"{name}Time": stamp for name, stamp in times.items()}
        self.write(job, jobStatus=status, message=message, **({"rayJobInfo": info} if info else {}))

    def over(self, job: Item, reason: str = "", message: str = "") -> None:
        """``Complete``, or ``Failed`` for *reason*."""
        found = job.get("status") or {}
        outcome = {"jobDeploymentStatus": "Failed", "reason": reason} if reason else {"jobDeploymentStatus": "Complete"}
        count = "failed" if reason else "succeeded"
        more = {"message": message} if message else {}
        end = self._k.objects.stamp()
        self.write(job, endTime=end, **{count: found.get(count, 0) + 1}, **outcome, **more)

    def remove_cluster(self, job: Item) -> None:
        cluster = self.cluster(job)
        if cluster is not None and not cluster["metadata"].get("deletionTimestamp"):
            meta = cluster["metadata"]
            self._k.remove("rayclusters", meta["name"], meta["namespace"])
            words = f"Deleted cluster {meta['namespace']}/{meta['name']}"
            events.note(self._k, job, "DeletedRayCluster", words, source=_SOURCE, normal=True)

    def let_go(self, job: Item) -> None:
        """Take the finalizer away, so that a deleted job goes."""
        now = self.now(job)
        if now is not None and FINALIZER in (now["metadata"].get("finalizers") or ()):
            left = [each for each in now["metadata"]["finalizers"] if each != FINALIZER]
            patch = {"metadata": {"finalizers": left}}
            self._k.edit("rayjobs", now["metadata"]["name"], patch, now["metadata"]["namespace"])

    def write(self, job: Item, **status: Any) -> None:
        """Merge *status*; ``None`` takes a field away."""
        now = self.now(job)
        if now is None:
            return
        meta = now["metadata"]
        status = {"observedGeneration": meta["generation"], **status}
        self._k.status("rayjobs", meta["name"], status, meta["namespace"])
