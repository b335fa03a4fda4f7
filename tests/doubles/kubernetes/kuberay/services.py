"""RayServices as KubeRay keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.kuberay import events, rulebook
from tests.doubles.kubernetes.kuberay.clusters import SERVE, Clusters
from tests.doubles.kubernetes.kuberay.pods import owner_of
from tests.doubles.kubernetes.objects import random_suffix
from tests.doubles.kubernetes.refusal import Refusal
from tests.doubles.kubernetes.store import Item

FINALIZER = "ray.io/rayservice-finalizer"
_SOURCE = "rayservice-controller"


class Services:
    """Everything about RayServices of one server; of upgrades, only what the status says of them."""

    def __init__(self, k: Contents, clusters: Clusters) -> None:
        self._k = k
        self._clusters = clusters

    def now(self, service: Item) -> Item | None:
        meta = service["metadata"]
        found = self._k.find("rayservices", meta["name"], meta["namespace"])
        return found if found is not None and found["metadata"]["uid"] == meta["uid"] else None

    def cluster(self, service: Item) -> Item | None:
        """The pending cluster where there is one, the active one otherwise."""
        status = service.get("status") or {}
        for part in ("pendingServiceStatus", "activeServiceStatus"):
            if name := (status.get(part) or {}).get("rayClusterName"):
                return self._k.find("rayclusters", name, service["metadata"]["namespace"])
        return None

    def faults(self, service: Item) -> str:
        name = service["metadata"]["name"]
        found = [rulebook.name_fault("RayService", name), *rulebook.cluster_faults(service["spec"]["rayClusterConfig"])]
        for fault in filter(None, found):
            events.note(self._k, service, "InvalidRayServiceSpec", fault, source=_SOURCE)
            self.write(service, conditions=self._conditions(service, Ready=("False", "ValidationFailed", fault)))
            return fault
        return ""

    def initialize(self, service: Item) -> None:
        meta = service["metadata"]
        finalizers = meta.get("finalizers") or []
        if FINALIZER not in finalizers:
            patch = {"metadata": {"finalizers": [*finalizers, FINALIZER]}}
            self._k.edit("rayservices", meta["name"], patch, meta["namespace"])
        ready = ("False", "Initializing", "RayService is initializing")
        self.write(
            service,
            pendingServiceStatus={"rayClusterName": f"{meta['name']}-{random_suffix()}"},
            numServeEndpoints=0,
            conditions=self._conditions(service, Ready=ready, UpgradeInProgress=("False", "NoPendingCluster", "")),
        )

    def make_cluster(self, service: Item) -> Item | None:
        found = self.cluster(service)
        if found is not None:
            return found
        name = service["status"]["pendingServiceStatus"]["rayClusterName"]
        try:
            return self._clusters.child(service, name, service["spec"]["rayClusterConfig"])
        except Refusal as refusal:
            words = f"Failed to create the RayCluster {name}: {refusal.message}"
            events.note(self._k, service, "FailedToCreateRayCluster", words, source=_SOURCE)
            return None

    def note_cluster(self, service: Item, status: Mapping[str, Any]) -> None:
        part = "pendingServiceStatus" if self._pending(service) else "activeServiceStatus"
        self.write(service, **{part: {"rayClusterStatus": dict(status)}})

    def applications(self, service: Item, found: Mapping[str, Any]) -> None:
        """What Serve says of its applications, by name: ``status`` and ``message``."""
        part = "pendingServiceStatus" if self._pending(service) else "activeServiceStatus"
        self.write(service, **{part: {"applicationStatuses": dict(found)}})

    def serving(self, service: Item, endpoints: int = 1) -> None:
        """All applications run: the pending cluster is the active one now, and its endpoints are there."""
        now = self.now(service)
        if now is None:
            return
        status = now.get("status") or {}
        active = self._pending(now) or status.get("activeServiceStatus") or {}
        meta = now["metadata"]
        for name in (f"{meta['name']}-head-svc", f"{meta['name']}-serve-svc"):
            if self._k.find("services", name, meta["namespace"]) is None:
                ports = [{"name": "serve", "port": SERVE, "protocol": "TCP"}]
                owned = {"name": name, "ownerReferences": [owner_of(now)]}
                self._k.put("services", {"metadata": owned, "spec": {"ports": ports}}, meta["namespace"])
        self.write(
            now,
            activeServiceStatus=active,
            pendingServiceStatus=None,
            numServeEndpoints=endpoints,
            serviceStatus="Running" if endpoints else "",
            conditions=self._conditions(
                now,
                Ready=("True", "NonZeroServeEndpoints", "") if endpoints else ("False", "ZeroServeEndpoints", ""),
                UpgradeInProgress=("False", "NoPendingCluster", ""),
            ),
        )

    def let_go(self, service: Item) -> None:
        now = self.now(service)
        if now is not None and FINALIZER in (now["metadata"].get("finalizers") or ()):
            left = [each for each in now["metadata"]["finalizers"] if each != FINALIZER]
            patch = {"metadata": {"finalizers": left}}
            self._k.edit("rayservices", now["metadata"]["name"], patch, now["metadata"]["namespace"])

    def write(self, service: Item, **status: Any) -> None:
        now = self.now(service)
        if now is not None:
            meta = now["metadata"]
            found = {"observedGeneration": meta["generation"], **status}
            self._k.status("rayservices", meta["name"], found, meta["namespace"])

    def _pending(self, service: Item) -> dict[str, Any]:
        return dict((service.get("status") or {}).get("pendingServiceStatus") or {})

    def _conditions(self, service: Item, **fresh: tuple[str, str, str]) -> list[dict[str, str]]:
        kept = {each["type"]: each for each in (service.get("status") or {}).get("conditions") or ()}
        for kind, (status, reason, message) in fresh.items():
            old = kept.get(kind)
            same = old is not None and old["status"] == status
            stamp = old["lastTransitionTime"] if same and old else self._k.objects.stamp()
            entry = {"type": kind, "status": status, "reason": reason, "message": message}
            kept[kind] = {**entry, "lastTransitionTime": stamp}
        return list(kept.values())
