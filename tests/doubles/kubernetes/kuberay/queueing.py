"""Kueue: a Workload for each object with a queue's label, which waits, is admitted, and may be evicted."""

from __future__ import annotations

from typing import Any

from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.kuberay import events
from tests.doubles.kubernetes.kuberay.pods import owner_of
from tests.doubles.kubernetes.store import Item

QUEUE = "kueue.x-k8s.io/queue-name"


class Queueing:
    """Kueue's part. It suspends what it queues; whoever plays KubeRay acts on ``spec.suspend``."""

    def __init__(self, k: Contents) -> None:
        self._k = k

    def workload(self, top: Item) -> Item | None:
        uid = top["metadata"]["uid"]
        found = [
            each
            for each in self._k.items("workloads", top["metadata"]["namespace"])
            if any(owner["uid"] == uid for owner in each["metadata"].get("ownerReferences") or ())
        ]
        return found[0] if found else None

    def enqueue(self, top: Item, message: str = "") -> Item:
        """Suspend *top* and let it wait: no quota, for the reason that *message* gives."""
        meta = top["metadata"]
        self._suspend(top, suspend=True)
        found = self.workload(top)
        if found is None:
            name = f"{top['kind'].lower()}-{meta['name']}-{meta['uid'][:5]}"
            queue = (meta.get("labels") or {}).get(QUEUE, "")
            body = {"metadata": {"name": name, "ownerReferences": [owner_of(top)]}, "spec": {"queueName": queue}}
            found = self._k.put("workloads", body, meta["namespace"])
        words = (
            message or "couldn't assign flavors to pod set: insufficient unused quota for google.com/tpu in flavor tpu"
        )
        self._write(found, QuotaReserved=("False", "Pending", words))
        events.note(self._k, found, "Pending", words, source=events.KUEUE)
        return found

    def admit(self, top: Item) -> None:
        found = self.workload(top)
        assert found is not None
        self._write(found, QuotaReserved=("True", "QuotaReserved", ""), Admitted=("True", "Admitted", ""))
        events.note(self._k, found, "Admitted", "Admitted by ClusterQueue tpus", source=events.KUEUE, normal=True)
        self._suspend(top, suspend=False)

    def evict(self, top: Item, reason: str = "Preempted", message: str = "Preempted to accommodate a workload") -> None:
        found = self.workload(top)
        assert found is not None
        self._write(
            found,
            Evicted=("True", reason, message),
            QuotaReserved=("False", "Pending", message),
            Admitted=("False", "NoReservation", message),
        )
        self._suspend(top, suspend=True)

    def _suspend(self, top: Item, *, suspend: bool) -> None:
        plural = {"RayJob": "rayjobs", "RayCluster": "rayclusters", "RayService": "rayservices"}[top["kind"]]
        meta = top["metadata"]
        self._k.edit(plural, meta["name"], {"spec": {"suspend": suspend}}, meta["namespace"])

    def _write(self, workload: Item, **fresh: tuple[str, str, str]) -> None:
        kept: dict[str, Any] = {each["type"]: each for each in (workload.get("status") or {}).get("conditions") or ()}
        for kind, (status, reason, message) in fresh.items():
            entry = {"type": kind, "status": status, "reason": reason, "message": message}
            kept[kind] = {**entry, "lastTransitionTime": self._k.objects.stamp()}
        meta = workload["metadata"]
        self._k.status("workloads", meta["name"], {"conditions": list(kept.values())}, meta["namespace"])
