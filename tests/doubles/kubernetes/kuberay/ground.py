"""Simulated slices for RayClusters: started and ended with them, one folder for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.state import Arrivals, Phase, Record, Slice
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest
from tests.doubles.kubernetes.kuberay.shapes import groups, slices
from tests.doubles.kubernetes.store import Item

_TTL_S = 60.0
"""Longest that slices outlive a controller that was killed."""


@dataclass
class Ground:
    """
    :param root: folder of the simulated clusters, with a short path.
    :param arrivals: how slices come and heal.
    """

    root: Path
    arrivals: Arrivals = field(default_factory=Arrivals)
    _held: dict[str, str] = field(default_factory=dict)

    async def start(self, item: Item) -> None:
        """Start what the manifest of RayCluster *item* asks for; its pods' labels and our request say nothing here."""
        uid = item["metadata"]["uid"]
        shapes = slices(item["spec"])
        first, *also = shapes or slices(_HEAD_ALONE)
        # Simulated slices are called after the cluster without its last part, and KubeRay's after their group.
        group = next((each.name for each in groups(item["spec"]) if each.chips), "rc")
        name = f"{group}-{uid[:8]}"
        self._held[uid] = name
        request = RayRequest(
            identity=Identity(deployment="kuberay", dag_id="rc", task_id=name, run_id=uid),
            kind=Kind.CLUSTER,
            slice=str(first),
            storage="file:///nowhere",
            limits=Deadlines().since(time.time()),
            cluster=name,
            ttl_s=_TTL_S,
        )
        others = [str(each) for each in also]
        await asyncio.to_thread(cluster.start, self.root, request, others, self.arrivals)

    def holds(self, uid: str) -> bool:
        return uid in self._held

    def uids(self) -> list[str]:
        return list(self._held)

    def look(self, uid: str) -> Cluster | None:
        """The simulated cluster, with a sign of life; ``None`` where it has ended by itself."""
        found = cluster.attach(self.root, self._held[uid])
        if found is not None and not found.lost:
            found.beat()
            return found
        return None

    async def end(self, uid: str) -> None:
        """End every process of it; returns when none is left."""
        name = self._held[uid]
        found = cluster.attach(self.root, name)
        if found is not None:
            await asyncio.to_thread(cluster.remove, found)
        del self._held[uid]

    async def end_all(self) -> None:
        """:raises ExceptionGroup: some resist; the others have been ended all the same."""
        results = await asyncio.gather(*map(self.end, self.uids()), return_exceptions=True)
        if faults := [each for each in results if isinstance(each, Exception)]:
            raise ExceptionGroup("simulated slices do not end", faults)


def is_up(found: Cluster | None) -> bool:
    return found is not None and found.record.phase is Phase.READY


def parts(record: Record) -> list[Slice]:
    """The slices in the order in which the manifest's groups have their replicas."""
    return list(record.slices)


_HEAD_ALONE: Mapping[str, Any] = {
    "workerGroupSpecs": [
        {
            "groupName": "one",
            "replicas": 1,
            "template": {
                "spec": {
                    "nodeSelector": {
                        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
                        "cloud.google.com/gke-tpu-topology": "1x1",
                    },
                    "containers": [{"resources": {"limits": {"google.com/tpu": 1}}}],
                }
            },
        }
    ]
}
"""The smallest slice, for a cluster without TPUs: simulated clusters have one at least."""
