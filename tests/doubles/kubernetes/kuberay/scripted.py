"""A KubeRay whose every move a test makes: no Ray, no time that passes by itself."""

from __future__ import annotations

from typing import Any

from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.kinds import Kind
from tests.doubles.kubernetes.kuberay import events, rulebook
from tests.doubles.kubernetes.kuberay.clusters import Clusters
from tests.doubles.kubernetes.kuberay.jobs import ENDED, OVER, Jobs
from tests.doubles.kubernetes.kuberay.pods import Pods, is_ready
from tests.doubles.kubernetes.kuberay.queueing import Queueing
from tests.doubles.kubernetes.kuberay.services import Services
from tests.doubles.kubernetes.refusal import Refusal
from tests.doubles.kubernetes.store import Item

STEPS = (
    *("initializing", "provisioning", "starting", "ready"),
    *("submitted", "running", "succeeded", "complete", "cleaned"),
)
"""A job's whole way. A cluster is done with ``ready``; a service serves with ``running``."""

_NO_NODE = (
    "0/3 nodes are available: 1 Insufficient google.com/tpu, 2 node(s) didn't match Pod's node affinity/selector. "
    "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
)


class ScriptedController:
    """``await controller.step("ready")`` walks all steps up to that one.

    Each method acts on the only RayJob, RayService or RayCluster without a parent, or on the one that is called *name*.
    """

    def __init__(self, k: Contents, namespace: str = "default") -> None:
        self.k = k
        self.namespace = namespace
        self.pods = Pods(k)
        self.clusters = Clusters(k, self.pods)
        self.jobs = Jobs(k, self.clusters)
        self.services = Services(k, self.clusters)
        self.queueing = Queueing(k)
        self._taken: dict[str, int] = {}

    def top(self, name: str = "") -> Item:
        """The object that was created by who asks for something.

        :raises LookupError: there is none, or there are several.
        """
        found = [
            item
            for plural in ("rayjobs", "rayservices", "rayclusters")
            for item in self.k.items(plural, self.namespace)
            if not item["metadata"].get("ownerReferences") and name in {"", item["metadata"]["name"]}
        ]
        if len(found) != 1:
            raise LookupError(f"{len(found)} objects are called {name!r} or are the only one")
        return found[0]

    def cluster(self, name: str = "") -> Item:
        """The RayCluster of, or that is, the object.

        :raises LookupError: it is not there.
        """
        top = self.top(name)
        found = top if top["kind"] == "RayCluster" else self._family(top).cluster(top)
        if found is None:
            raise LookupError(f"{top['metadata']['name']} has no cluster")
        return found

    async def step(self, until: str, name: str = "") -> Item:
        """Walk on to *until*, at least that one step; the object then."""
        top = self.top(name)
        uid, goal = top["metadata"]["uid"], STEPS.index(until)
        first = min(self._taken.get(uid, 0), goal)
        for step in STEPS[first : goal + 1]:
            getattr(self, f"_{step}")(self.top(name))
        self._taken[uid] = goal + 1
        return self.top(name)

    def _initializing(self, top: Item) -> None:
        if top["kind"] == "RayCluster":
            return
        family = self._family(top)
        if not family.faults(top):
            family.initialize(top)
            family.make_cluster(self.top(top["metadata"]["name"]))

    def _provisioning(self, top: Item) -> None:
        """Pods are made; no node is there for a worker, and the autoscaler is asked for some."""
        cluster = self._own_cluster(top)
        if cluster is None or self.clusters.faults(cluster):
            return
        self.clusters.furnish(cluster)
        head = self.pods.head(cluster)
        if head is not None:
            self.pods.scheduled(head, "node-head")
            self.pods.running(head)
        for pod in self.pods.workers(cluster):
            self.pods.unschedulable(pod, _NO_NODE)
        self._note_cluster(top)

    def _starting(self, top: Item) -> None:
        """Nodes have come, and pull the image."""
        cluster = self._own_cluster(top)
        for index, pod in enumerate(self.pods.workers(cluster) if cluster else ()):
            self.pods.scheduled(pod, f"node-{index}")
        self._note_cluster(top)

    def _ready(self, top: Item) -> None:
        cluster = self._own_cluster(top)
        for index, pod in enumerate(self.pods.of(cluster) if cluster else ()):
            if not is_ready(pod):
                self.pods.running(pod, f"10.0.0.{index + 1}")
        self._note_cluster(top)

    def _submitted(self, top: Item) -> None:
        if top["kind"] == "RayJob":
            self.jobs.submitted(top)
            self.jobs.seen(self.top(top["metadata"]["name"]), "PENDING", "Job has not started yet.")

    def _running(self, top: Item) -> None:
        if top["kind"] == "RayJob":
            self.jobs.seen(top, "RUNNING", "Job is currently running.", start=self.k.objects.stamp())
        elif top["kind"] == "RayService":
            self.services.serving(top)

    def _succeeded(self, top: Item) -> None:
        if top["kind"] == "RayJob" and top["status"].get("jobStatus") not in ENDED:
            self.ends("SUCCEEDED", "Job finished successfully.", name=top["metadata"]["name"])

    def _complete(self, top: Item) -> None:
        if top["kind"] == "RayJob" and top["status"]["jobDeploymentStatus"] not in OVER:
            failed = top["status"]["jobStatus"] == "FAILED"
            self.jobs.over(top, "AppFailed" if failed else "")

    def _cleaned(self, top: Item) -> None:
        """``ttlSecondsAfterFinished`` is over."""
        if top["kind"] == "RayJob":
            self.jobs.remove_cluster(top)

    # What a job comes to.

    def ends(self, status: str, message: str = "", name: str = "") -> None:
        """The dashboard says that the job has ended. ``jobDeploymentStatus`` follows with :meth:`step` ``complete``."""
        assert status in ENDED
        self.jobs.seen(self.top(name), status, message, end=self.k.objects.stamp())

    def fails(self, reason: str, message: str = "", name: str = "") -> None:
        """``jobDeploymentStatus`` is ``Failed`` whatever the job's own status is: ``DeadlineExceeded`` and the like."""
        self.jobs.over(self.top(name), reason, message)

    def retries(self, name: str = "") -> None:
        """``Retrying``, then a new cluster under another name."""
        job = self.top(name)
        self.jobs.write(job, jobDeploymentStatus="Retrying", jobStatus="")
        self.jobs.remove_cluster(self.top(name))
        self.jobs.initialize(self.top(name))
        self.jobs.make_cluster(self.top(name))
        self._taken[job["metadata"]["uid"]] = 1

    # Kueue.

    def is_queued(self, message: str = "", name: str = "") -> None:
        """Kueue suspends the object, which waits for quota."""
        self.queueing.enqueue(self.top(name), message)
        self._suspended(self.top(name))

    def is_admitted(self, name: str = "") -> None:
        """It may go on, from the first step."""
        top = self.top(name)
        self.queueing.admit(top)
        self._taken[top["metadata"]["uid"]] = 0

    def is_evicted(self, reason: str = "Preempted", message: str = "", name: str = "") -> None:
        """Kueue takes the quota back: pods and cluster go, and the object waits again."""
        self.queueing.evict(self.top(name), reason, message or "Preempted to accommodate a workload")
        self._suspended(self.top(name))

    def _suspended(self, top: Item) -> None:
        if top["kind"] == "RayJob":
            self.jobs.remove_cluster(top)
            self.jobs.write(top, jobDeploymentStatus="Suspended", jobStatus="", rayClusterName=None, jobId=None)
        elif top["kind"] == "RayCluster":
            for pod in self.pods.of(top):
                self.pods.gone(pod)
            self.clusters.suspended(top, done=True)

    # What goes wrong on the way.

    def worker(self, index: int = 0, name: str = "") -> Item:
        return self.pods.workers(self.cluster(name))[index]

    def host_fails(self, index: int = 0, reason: str = "Preempted", message: str = "", name: str = "") -> None:
        """One host of a slice is lost; KubeRay then takes the replica down with :meth:`replica_is_replaced`."""
        pod = self.worker(index, name)
        words = message or "Pod was terminated in response to imminent node shutdown."
        self.pods.failed(pod, reason, words)
        self._note_cluster(self.top(name))

    def replica_is_replaced(self, index: int = 0, name: str = "") -> None:
        """All hosts of the replica of worker *index* go, and new ones wait for nodes."""
        cluster, lost = self.cluster(name), self.worker(index, name)
        key = ("ray.io/group", "ray.io/worker-group-replica-index")
        where = [lost["metadata"]["labels"][each] for each in key]
        for pod in self.pods.workers(cluster):
            if [pod["metadata"]["labels"][each] for each in key] == where:
                self.pods.gone(pod)
        self.pods.make(cluster)
        for pod in self.pods.workers(cluster):
            if "conditions" not in pod["status"]:
                self.pods.unschedulable(pod, _NO_NODE)
        self._note_cluster(self.top(name))

    def unschedulable(self, message: str = _NO_NODE, *, scales_up: bool = False, name: str = "") -> None:
        for pod in self.pods.workers(self.cluster(name)):
            self.pods.unschedulable(pod, message, scales_up=scales_up)

    def image_pull_fails(self, message: str = "", name: str = "", *, backs_off: bool = True) -> None:
        image = self.worker(0, name)["spec"]["containers"][0].get("image", "")
        words = message or f'Failed to pull image "{image}": not found'
        for pod in self.pods.workers(self.cluster(name)):
            self.pods.waiting(pod, "ErrImagePull", words)
            if backs_off:
                self.pods.waiting(pod, "ImagePullBackOff", f'Back-off pulling image "{image}": {words}')

    def head_is_lost(self, reason: str = "OOMKilled", message: str = "", name: str = "") -> None:
        head = self.pods.head(self.cluster(name))
        assert head is not None
        self.pods.failed(head, reason, message or "The node was low on resource: memory.")
        self._note_cluster(self.top(name))

    def node_event(self, pod: Item, reason: str, message: str) -> None:
        """``TaintManagerEviction``, ``NodeNotReady`` ..."""
        events.note(self.k, pod, reason, message, source=events.NODES)

    def webhook_denies(self, message: str = "") -> None:
        """The TPU webhook refuses each RayCluster from now on; without *message*, those it really would."""

        def ask(verb: str, kind: Kind, item: Item) -> Refusal | None:
            if (verb, kind.plural) != ("create", "rayclusters"):
                return None
            why = message or rulebook.webhook_denial(item["spec"])
            words = f'admission webhook "kuberay-tpu-webhook.ray.io" denied the request: {why}'
            return Refusal(400, "", words) if why else None

        self.k.objects.admission.append(ask)

    # Within.

    def _family(self, top: Item) -> Jobs | Services:
        return self.jobs if top["kind"] == "RayJob" else self.services

    def _own_cluster(self, top: Item) -> Item | None:
        return top if top["kind"] == "RayCluster" else self._family(top).cluster(top)

    def _note_cluster(self, top: Item) -> None:
        """Write the cluster's status anew, and what its parent says of it."""
        cluster = self._own_cluster(top)
        written: Any = self.clusters.write_status(cluster) if cluster is not None else None
        if written is not None and top["kind"] != "RayCluster":
            self._family(top).note_cluster(top, written["status"])
