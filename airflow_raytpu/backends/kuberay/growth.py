"""What may change in a shared cluster that is there: it may get more slices of its shape. Pure.

All else would begin a second cluster or end what runs on the first one, and wants another name.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from airflow_raytpu.backends.kuberay import naming
from airflow_raytpu.placement.topology import TpuSlice


def grown(cluster: Mapping[str, Any], asked: str) -> dict[str, Any] | None:
    """The patch that gives *cluster* the slices *asked* for; empty where it has them, ``None`` where it cannot.

    Fewer slices than it has are no wish to take some away: others work there.
    """
    stated = (cluster["metadata"].get("annotations") or {}).get(naming.SLICE, "")
    if stated == asked:
        return {}
    if not stated:
        return None
    there, wanted = TpuSlice.parse(stated), TpuSlice.parse(asked)
    if there.shape != wanted.shape:
        return None
    if wanted.num_slices <= there.num_slices:
        return {}
    if wanted.hosts == 1:
        return None  # each single host is a group of its own, which KubeRay does not add in order
    groups = copy.deepcopy(cluster["spec"]["workerGroupSpecs"])
    for group in groups:
        if group.get("numOfHosts") == wanted.hosts:
            group["replicas"] = wanted.num_slices
            group["maxReplicas"] = max(group["maxReplicas"], wanted.num_slices)
            if not cluster["spec"].get("enableInTreeAutoscaling"):
                group["minReplicas"] = wanted.num_slices
    return {
        "metadata": {
            "resourceVersion": cluster["metadata"]["resourceVersion"],
            "annotations": {naming.SLICE: asked},
        },
        "spec": {"workerGroupSpecs": groups},
    }
