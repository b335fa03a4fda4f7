"""What KubeRay refuses of features that we do not use ourselves but an author may lay over. Pure.

Source: KubeRay 1.7 (validation.go). What is wrong there shows in an event only, while the job waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_raytpu.backends.kuberay.making.pod_rules import label_problems
from airflow_raytpu.backends.kuberay.making.problems import Problem, items, part, whole_number
from airflow_raytpu.model.kuberay_rules import ray_version

_FAULT_TOLERANT = "ray.io/ft-enabled"
_START_COMMAND = "KUBERAY_GEN_AUTOSCALER_START_CMD"
_OF_ONE_HOST = ("ray.io/tpu-worker-id", "ray.io/tpu-slice-name", "ray.io/node-id")
_PRIORITY_RAY = (2, 56)

Spec = Mapping[str, Any]


def problems(path: str, ray: Spec, annotations: Mapping[str, Any]) -> Iterator[Problem]:
    """Of the cluster's spec *ray*.

    :param annotations: of the object that it is in.
    """
    yield from _authentication(f"{path}.authOptions", part(ray, "authOptions"))
    yield from _fault_tolerance(path, ray, annotations)
    yield from _autoscaler(f"{path}.autoscalerOptions", part(ray, "autoscalerOptions"))
    groups = {f"workerGroupSpecs[{group.get('groupName')}]": group for group in items(ray, "workerGroupSpecs")}
    for name, group in {"headGroupSpec": part(ray, "headGroupSpec"), **groups}.items():
        yield from label_problems(f"{path}.{name}.labels", part(group, "labels"))
        for key in _OF_ONE_HOST:
            if key in part(group, "labels"):
                yield Problem(f"{path}.{name}.labels[{key}]", "set", "left out: each host has its own")
        yield from _scaled(f"{path}.{name}", group, ray)


def upgrade_problems(spec: Spec) -> Iterator[Problem]:
    """Of a RayService's own spec."""
    upgrade = part(spec, "upgradeStrategy")
    if upgrade.get("type") != "NewClusterWithIncrementalUpgrade":
        return
    if not part(upgrade, "clusterUpgradeOptions"):
        yield Problem("spec.upgradeStrategy.clusterUpgradeOptions", None, "stated for an incremental upgrade")
    if not part(spec, "rayClusterConfig").get("enableInTreeAutoscaling"):
        yield Problem("spec.rayClusterConfig.enableInTreeAutoscaling", None, "true for an incremental upgrade")


def _authentication(path: str, stated: Spec) -> Iterator[Problem]:
    for name in ("enableK8sTokenAuth", "secretName"):
        if stated.get(name):
            yield Problem(f"{path}.{name}", stated[name], "left out: Airflow reads the token from KubeRay's own Secret")


def _fault_tolerance(path: str, ray: Spec, annotations: Mapping[str, Any]) -> Iterator[Problem]:
    stated = part(ray, "gcsFaultToleranceOptions")
    if stated and annotations.get(_FAULT_TOLERANT):
        yield Problem(f"metadata.annotations[{_FAULT_TOLERANT}]", "set", "left out beside gcsFaultToleranceOptions")
    if stated.get("storage") and stated.get("backend", "redis") == "redis":
        yield Problem(f"{path}.gcsFaultToleranceOptions.storage", "set", "left out with the backend redis")
    parameters = part(ray, "headGroupSpec", "rayStartParams")
    for name in ("redis-username", *(("redis-password",) if stated else ())):
        if name in parameters:
            yield Problem(f"{path}.headGroupSpec.rayStartParams[{name}]", "set", "in gcsFaultToleranceOptions")


def _autoscaler(path: str, stated: Spec) -> Iterator[Problem]:
    idle = stated.get("idleTimeoutSeconds")
    if idle is not None and whole_number(idle) is None:
        yield Problem(f"{path}.idleTimeoutSeconds", idle, "seconds, 0 or more")
    for each in stated.get("env") or []:
        if isinstance(each, Mapping) and each.get("name") == _START_COMMAND:
            yield Problem(f"{path}.env[{_START_COMMAND}]", "set", "left to KubeRay")


def _scaled(path: str, group: Spec, ray: Spec) -> Iterator[Problem]:
    """What goes with Ray's autoscaler, v2, alone."""
    on = ray.get("enableInTreeAutoscaling") and part(ray, "autoscalerOptions").get("version") == "v2"
    for name in ("idleTimeoutSeconds", "priority"):
        value = group.get(name)
        if value and not on:
            yield Problem(f"{path}.{name}", value, "left out without autoscaling")
    idle = group.get("idleTimeoutSeconds")
    if idle is not None and whole_number(idle) is None:
        yield Problem(f"{path}.idleTimeoutSeconds", idle, "seconds, 0 or more")
    version = ray_version(str(ray.get("rayVersion"))) or ()
    if group.get("priority") and version < _PRIORITY_RAY:
        yield Problem(f"{path}.priority", group["priority"], "left out before Ray 2.56")
