"""Events, as controllers, the scheduler and the kubelet write them."""

from __future__ import annotations

from typing import Any

from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.store import Item

RAY, SCHEDULER, KUBELET = "raycluster-controller", "default-scheduler", "kubelet"
AUTOSCALER, NODES, KUEUE = "cluster-autoscaler", "node-controller", "kueue-admission"


def note(k: Contents, about: Item, reason: str, message: str, *, source: str = RAY, normal: bool = False) -> Item:
    """An Event about *about*, a warning unless it is *normal*; the same one again counts up."""
    meta = about["metadata"]
    namespace = meta["namespace"]
    involved = {"kind": about["kind"], "apiVersion": about["apiVersion"], "name": meta["name"], "namespace": namespace}
    involved |= {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    now = k.objects.stamp()
    for event in k.items("events", namespace):
        same = (event["involvedObject"]["uid"], event["reason"], event["message"])
        if same == (meta["uid"], reason, message):
            changed = {"count": event["count"] + 1, "lastTimestamp": now}
            return k.edit("events", event["metadata"]["name"], changed, namespace)
    body: dict[str, Any] = {
        "metadata": {"generateName": f"{meta['name']}."},
        "involvedObject": involved,
        "reason": reason,
        "message": message,
        "type": "Normal" if normal else "Warning",
        "source": {"component": source},
        "reportingComponent": source,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    return k.put("events", body, namespace)
