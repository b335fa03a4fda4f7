"""The Ray cluster itself: the same spec in a RayCluster, a RayJob and a RayService. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from airflow_raytpu.backends.kuberay.making import pods
from airflow_raytpu.model.elastic import Elastic
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.placement.groups import WorkerGroup, plan_cluster
from airflow_raytpu.placement.topology import TpuSlice

IDLE_S = 600.0
"""How long an idle slice is kept where nobody says; Ray's own 60 s give it back between two tries of a task."""

_POD_TYPE, _TOPOLOGY = "ray.io/tpu-pod-type", "ray.io/tpu-topology"
_AUTOSCALER = {"cpu": "500m", "memory": "512Mi"}


def spec(request: RayRequest, options: KubeRayOptions) -> dict[str, Any]:
    """The ``spec`` of a RayCluster.

    :raises SliceShapeError: the request's slice cannot be read.
    """
    found: dict[str, Any] = {
        # Probes, token authentication and group priorities depend on it; KubeRay does not look into the image.
        "rayVersion": options.ray_version,
        # An empty authOptions means off (KubeRay 1.7).
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            # No Ray CPUs on the head: what needs one belongs on a host, where it cannot starve the GCS.
            "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"},  # noqa: S104 - a pod's own address
            "template": pods.head(request, options),
        },
        "workerGroupSpecs": list(_groups(request, options)),
    }
    if options.autoscaling:
        found["enableInTreeAutoscaling"] = True
        found["autoscalerOptions"] = {
            "version": "v2",
            "upscalingMode": "Default",
            "idleTimeoutSeconds": math.ceil(IDLE_S if options.idle_s is None else options.idle_s),
            "resources": {"requests": dict(_AUTOSCALER), "limits": dict(_AUTOSCALER)},
        }
    return found


def _groups(request: RayRequest, options: KubeRayOptions) -> Iterator[dict[str, Any]]:
    tpu_slice = TpuSlice.parse(request.slice)
    wanted = tpu_slice.num_slices
    least, most = _bounds(options, wanted)
    # Single hosts are a group each, so a cluster that may grow has a group for each that may come.
    slices = [tpu_slice] * most if tpu_slice.hosts == 1 else [tpu_slice]
    for index, group in enumerate(plan_cluster(slices, options.cpu_groups).groups):
        if not group.tpus:
            counts = (group.replicas,) * 3
        elif tpu_slice.hosts == 1:
            counts = (int(index < wanted), int(index < least), 1)
        else:
            counts = (least if Elastic.of(request.arguments) else wanted, least, most)
        yield _group(request, options, group, tpu_slice, counts)


def _bounds(options: KubeRayOptions, wanted: int) -> tuple[int, int]:
    if not options.autoscaling:
        return wanted, wanted
    least = wanted if options.min_slices is None else min(options.min_slices, wanted)
    return least, max(wanted, options.max_slices or 0)


def _group(
    request: RayRequest,
    options: KubeRayOptions,
    group: WorkerGroup,
    tpu_slice: TpuSlice,
    counts: tuple[int, ...],
) -> dict[str, Any]:
    replicas, least, most = counts
    found: dict[str, Any] = {
        "groupName": group.name,
        "replicas": replicas,
        "minReplicas": least,
        "maxReplicas": most,
        "numOfHosts": group.num_of_hosts,
        "rayStartParams": {},
        "template": pods.worker(request, options, group, tpu_slice),
    }
    if options.autoscaling and group.tpus:
        # What Ray finds out on a host that is there; the autoscaler needs it of hosts that are not (Ray 2.60).
        found["labels"] = {_POD_TYPE: tpu_slice.shape.pod_type, _TOPOLOGY: tpu_slice.topology}
    return found
