"""RayClusters with simulated slices behind them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable, Sequence

import aiohttp

from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.state import Host, Phase
from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.kuberay.clusters import DASHBOARD, SERVE, Clusters
from tests.doubles.kubernetes.kuberay.dashboard import Dashboard
from tests.doubles.kubernetes.kuberay.ground import Ground
from tests.doubles.kubernetes.kuberay.pods import Pods, is_ready, place
from tests.doubles.kubernetes.kuberay.shapes import groups
from tests.doubles.kubernetes.store import Item

_NO_NODE = "0/1 nodes are available: 1 Insufficient google.com/tpu."


class RealClusters:
    """Brings slices up for each RayCluster, mirrors them in its pods and status, and ends them with it."""

    def __init__(self, k: Contents, ground: Ground, session: aiohttp.ClientSession) -> None:
        self._k = k
        self._ground = ground
        self._session = session
        self.pods = Pods(k)
        self.clusters = Clusters(k, self.pods)
        self._refused: set[str] = set()
        self._up: set[str] = set()
        self._killed: set[int] = set()
        self._ending: dict[str, asyncio.Task[None]] = {}

    def dashboard(self, cluster: Item) -> Dashboard | None:
        """Of a cluster whose Ray is up."""
        uid = cluster["metadata"]["uid"]
        if uid not in self._up or uid in self._ending:
            return None
        found = self._ground.look(uid)
        if found is None or found.record.phase is not Phase.READY:
            return None
        return Dashboard(self._session, found.record.dashboard, found.token())

    def endpoint(self, cluster: Item) -> str:
        """Base URL of Serve; empty where the cluster is not up."""
        uid = cluster["metadata"]["uid"]
        found = self._ground.look(uid) if self._ground.holds(uid) and uid not in self._ending else None
        return found.record.endpoint if found else ""

    async def round(self) -> None:
        there = [item for item in self._k.items("rayclusters") if not item["metadata"].get("deletionTimestamp")]
        for item in there:
            await self._reconcile(item)
        self._end_others({item["metadata"]["uid"] for item in there})

    async def settled(self) -> None:
        """Return once no slices are on their way out."""
        self._end_others({item["metadata"]["uid"] for item in self._k.items("rayclusters")})
        await asyncio.gather(*self._ending.values())

    async def end(self) -> None:
        await asyncio.gather(*self._ending.values(), return_exceptions=True)
        await self._ground.end_all()

    def _end_others(self, wanted: Iterable[str]) -> None:
        for uid in self._ground.uids():
            if uid not in wanted and uid not in self._ending:
                self._end(uid)

    def _end(self, uid: str) -> None:
        self._up.discard(uid)
        self._ending[uid] = asyncio.create_task(self._ground.end(uid))

    async def _reconcile(self, item: Item) -> None:
        uid = item["metadata"]["uid"]
        if (ending := self._ending.get(uid)) is not None:
            if ending.done():
                await self._ending.pop(uid)
            return
        if uid in self._refused or item["spec"].get("managedBy") == "kueue.x-k8s.io/multikueue":
            return
        if item["spec"].get("suspend"):
            self._suspend(item)
        elif not self._ground.holds(uid):
            await self._start(item)
        else:
            self._mirror(item, self._ground.look(uid))

    async def _start(self, item: Item) -> None:
        if self.clusters.faults(item):
            self._refused.add(item["metadata"]["uid"])
        elif self.clusters.furnish(item):
            for pod in self.pods.of(item):
                self.pods.unschedulable(pod, _NO_NODE)
            self.clusters.write_status(item)
            await self._ground.start(item)

    def _suspend(self, item: Item) -> None:
        uid = item["metadata"]["uid"]
        for pod in self.pods.of(item):
            self.pods.gone(pod)
        if self._ground.holds(uid):
            self.clusters.suspended(item, done=False)
            self._end(uid)
        else:
            self.clusters.suspended(item, done=True)

    def _mirror(self, item: Item, found: Cluster | None) -> None:
        uid = item["metadata"]["uid"]
        if found is not None and found.record.phase is Phase.FAILED and uid not in self._up:
            self._end(uid)  # containers that do not start are started again
        elif found is None or found.record.phase in {Phase.FAILED, Phase.STOPPING}:
            why = found.record.detail if found else "Ray has ended"
            for pod in self.pods.of(item):
                if pod["status"].get("phase") != "Failed":
                    self.pods.failed(pod, "Error", why, exit_code=1)
        elif found.record.phase is Phase.READY:
            if self.pods.head(item) is None and uid in self._up:
                self._restart(item)
                return
            self._open(item, found)
            self._mirror_hosts(item, found)
        self.clusters.write_status(item)

    def _restart(self, item: Item) -> None:
        """Somebody deleted the head pod: Ray goes with it, and all begins anew without any job."""
        for pod in self.pods.workers(item):
            self.pods.gone(pod)
        self.clusters.write_status(item)
        self._end(item["metadata"]["uid"])

    def _open(self, item: Item, found: Cluster) -> None:
        """The head runs: its doors, and Ray's token."""
        uid, meta = item["metadata"]["uid"], item["metadata"]
        if uid in self._up:
            return
        ports = {DASHBOARD: found.record.dashboard, SERVE: found.record.endpoint}
        self._k.serve(f"{meta['name']}-head-svc", ports, meta["namespace"])
        self.clusters.secret(item, found.token())
        head = self.pods.head(item)
        if head is not None:
            self.pods.scheduled(head, "node-head")
            self.pods.running(head)
        self._up.add(uid)

    def _mirror_hosts(self, item: Item, found: Cluster) -> None:
        """Each worker pod is as its host is; a pod that somebody deleted takes its host with it."""
        slices = iter(found.record.slices)
        for group in groups(item["spec"]):
            for replica in range(group.replicas):
                hosts = next(slices).hosts if group.chips else ()
                there = {place(pod)[2]: pod for pod in self._replica(item, group.name, replica)}
                if len(there) < group.hosts:
                    self._kill(host for index, host in enumerate(hosts) if index not in there)
                    self._replace(item, there.values())
                elif any(pod["status"]["phase"] == "Failed" for pod in there.values()):
                    self._replace(item, there.values())
                else:
                    self._mirror_replica(there, hosts)

    def _mirror_replica(self, pods: dict[int, Item], hosts: Sequence[Host]) -> None:
        """New pods run once the whole slice is there."""
        whole = all(map(self._lives, hosts))
        for index, pod in pods.items():
            host = hosts[index] if hosts else None
            if is_ready(pod):
                if host is not None and not self._lives(host):
                    self.pods.failed(pod, "Terminated", "Pod was terminated in response to imminent node shutdown.")
            elif whole:
                self.pods.scheduled(pod, f"node-{host.ip if host else 'cpu'}")
                self.pods.running(pod, host.ip if host else "127.0.0.1")

    def _replace(self, item: Item, pods: Iterable[Item]) -> None:
        """A replica that lost a host goes as a whole, and new pods wait for nodes."""
        for pod in pods:
            self.pods.gone(pod)
        self.clusters.furnish(item)
        for pod in self.pods.workers(item):
            if "conditions" not in pod["status"]:
                self.pods.unschedulable(pod, _NO_NODE)

    def _kill(self, hosts: Iterable[Host]) -> None:
        for host in hosts:
            if self._lives(host) and host.raylet:
                self._killed.add(host.raylet)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(host.raylet, signal.SIGKILL)

    def _lives(self, host: Host) -> bool:
        """The supervisor notices a moment later that a host was killed."""
        return host.alive and host.raylet not in self._killed

    def _replica(self, item: Item, group: str, replica: int) -> list[Item]:
        return [pod for pod in self.pods.workers(item) if place(pod)[:2] == (group, replica)]
