"""What Kueue reads on a top-level object. Pure. It suspends and resumes by itself: ``spec.suspend`` is never ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_raytpu.backends.kuberay.making.problems import Problem, items, part
from airflow_raytpu.model.kuberay import KubeRayOptions, Provisioning

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
ELASTIC = "kueue.x-k8s.io/elastic-job"
RUN_LIMIT = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"

GROUPS_LIMIT = 17
"""Worker groups of one workload: 18 pod sets, one of which is the head (Kueue 0.19)."""


def labels(options: KubeRayOptions) -> dict[str, str]:
    found = {QUEUE: options.queue, PRIORITY: options.queue_priority}
    return {name: value for name, value in found.items() if value}


def queue_annotations(options: KubeRayOptions) -> dict[str, str]:
    found = {ELASTIC: "true"} if options.elastic else {}
    if options.provisioning is Provisioning.QUEUED and options.run_limit_s is not None:
        found[RUN_LIMIT] = f"{options.run_limit_s:.0f}"
    return found


def problems(made: Mapping[str, Any], path: str, ray: Mapping[str, Any]) -> Iterator[Problem]:
    """What Kueue refuses of a queued object.

    :param path: of the cluster's spec, *ray*.
    """
    metadata = made["metadata"]
    if QUEUE not in part(metadata, "labels"):
        return
    groups = [group.get("groupName") for group in items(ray, "workerGroupSpecs")]
    if len(groups) > GROUPS_LIMIT:
        yield Problem(f"{path}.workerGroupSpecs", f"{len(groups)} groups", f"at most {GROUPS_LIMIT} (Kueue)")
    if "head" in groups:
        yield Problem(f"{path}.workerGroupSpecs[head].groupName", "head", "another name (Kueue)")
    if ray.get("enableInTreeAutoscaling") and part(metadata, "annotations").get(ELASTIC) != "true":
        found = part(metadata, "annotations").get(ELASTIC)
        yield Problem(f"metadata.annotations[{ELASTIC}]", found, "'true' for an autoscaling cluster: set elastic")
