"""RayServices that really serve."""

from __future__ import annotations

import aiohttp

from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.kuberay.clusters import SERVE, is_ready_cluster
from tests.doubles.kubernetes.kuberay.real_clusters import RealClusters
from tests.doubles.kubernetes.kuberay.services import Services
from tests.doubles.kubernetes.store import Item


class RealServices:
    """A Serve config goes to the cluster that there is; a changed cluster is not rolled out.

    It is sent when it changed since it was sent last, when nobody remembers that it was sent, and when Serve has no
    application (KubeRay 1.7, ``checkIfNeedSubmitServeApplications``).
    """

    def __init__(self, k: Contents, clusters: RealClusters) -> None:
        self._k = k
        self._clusters = clusters
        self._services = Services(k, clusters.clusters)
        self._sent: dict[str, str] = {}

    def forget(self) -> None:
        """What a new operator knows of what was sent: nothing."""
        self._sent.clear()

    async def round(self) -> None:
        for service in self._k.items("rayservices"):
            if service["metadata"].get("deletionTimestamp"):
                self._services.let_go(service)
            elif (service.get("status") or {}).get("conditions"):
                await self._reconcile(service)
            elif not self._services.faults(service):
                self._services.initialize(service)

    async def _reconcile(self, service: Item) -> None:
        status = service["status"]
        if not status.get("pendingServiceStatus") and not status.get("activeServiceStatus"):
            return  # refused
        cluster = self._services.make_cluster(service)
        if cluster is None:
            return
        self._services.note_cluster(service, cluster.get("status") or {})
        if not is_ready_cluster(cluster):
            return
        try:
            await self._keep_serving(service, cluster)
        except (aiohttp.ClientError, TimeoutError):
            return  # tried again with the next round

    async def _keep_serving(self, service: Item, cluster: Item) -> None:
        dashboard, config = self._clusters.dashboard(cluster), service["spec"].get("serveConfigV2", "")
        uid = cluster["metadata"]["uid"]
        if dashboard is None or not config:
            return
        found = await dashboard.applications()
        if self._sent.get(uid) != config or not found:
            if not await dashboard.deploy(config, self._clusters.endpoint(cluster)):
                self._sent[uid] = config
            return
        self._services.applications(service, found)
        if found and all(each["status"] == "RUNNING" for each in found.values()):
            self._services.serving(service)
            meta = service["metadata"]
            for name in (f"{meta['name']}-serve-svc", f"{meta['name']}-head-svc"):
                self._k.serve(name, {SERVE: self._clusters.endpoint(cluster)}, meta["namespace"])
