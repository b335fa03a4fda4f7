"""What KubeRay 1.7.0's reconcilers and the TPU webhook refuse, as far as manifests of ours could break it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tests.doubles.kubernetes.kuberay.shapes import groups

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_RESOURCE_PARAMS = {"num-cpus", "num-gpus", "memory", "resources"}


def name_fault(kind: str, name: str) -> str:
    limit = 53 if kind == "RayCluster" else 47
    if len(name) > limit:
        return f"{kind} name should be no more than {limit} characters"
    return "" if _DNS_1035.fullmatch(name) else f"{kind} name should be a valid DNS1035 label"


def cluster_faults(spec: Mapping[str, Any], *, is_child: bool = False) -> Iterator[str]:
    workers = spec.get("workerGroupSpecs") or []
    v2 = (spec.get("autoscalerOptions") or {}).get("version") == "v2"
    for where, group in (("headGroupSpec", spec["headGroupSpec"]), *((each["groupName"], each) for each in workers)):
        yield from _pod_faults(where, group, v2=v2)
    for group in workers:
        yield from _scale_faults(group, autoscales=bool(spec.get("enableInTreeAutoscaling")), v2=v2)
    if (spec.get("authOptions") or {}).get("mode") == "token" and _version(spec) < (2, 52):
        yield "authOptions.mode is 'token' but minimum Ray version is 2.52.0"
    if is_child and (spec.get("upgradeStrategy") or {}).get("type"):
        yield "upgradeStrategy cannot be set when RayCluster is created by RayJob or RayService"


def _pod_faults(where: str, group: Mapping[str, Any], *, v2: bool) -> Iterator[str]:
    params = group.get("rayStartParams") or {}
    if not group["template"].get("spec", {}).get("containers"):
        yield f"{where} should have at least one container"
    if group.get("resources") and params.keys() & _RESOURCE_PARAMS:
        yield f"resource fields should not be set in both rayStartParams and Resources for {where}"
    if "labels" in params:
        yield f"rayStartParams['labels'] is not supported for {where}"
    if v2 and group["template"].get("spec", {}).get("restartPolicy", "Never") != "Never":
        yield f"restartPolicy for {where} should be Never or unset when using autoscaler V2"


def _scale_faults(group: Mapping[str, Any], *, autoscales: bool, v2: bool) -> Iterator[str]:
    if not 0 <= group.get("minReplicas", 0) <= group.get("maxReplicas", 0):
        yield f"minReplicas of {group['groupName']} should be between 0 and maxReplicas"
    if group.get("idleTimeoutSeconds") is not None and not v2:
        yield f"worker group {group['groupName']} has idleTimeoutSeconds set, but autoscaler v2 is not enabled"
    if group.get("suspend") and autoscales:
        yield f"worker group {group['groupName']} cannot be suspended with Autoscaler enabled"


def job_faults(name: str, spec: Mapping[str, Any]) -> Iterator[str]:
    if fault := name_fault("RayJob", name):
        yield fault
    yield from _ending_faults(spec, shuts_down=bool(spec.get("shutdownAfterJobFinishes")))
    if not spec.get("rayClusterSpec") and not spec.get("clusterSelector"):
        yield "one of RayClusterSpec or ClusterSelector must be set"
    for limit in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if spec.get(limit) is not None and spec[limit] <= 0:
            yield f"{limit} must be a positive integer"
    if spec.get("backoffLimit", 0) < 0:
        yield "backoffLimit must be a positive integer"
    try:
        yaml.safe_load(spec.get("runtimeEnvYAML", ""))
    except yaml.YAMLError as error:
        yield f"failed to unmarshal RuntimeEnvYAML: {error}"
    if spec.get("rayClusterSpec"):
        yield from cluster_faults(spec["rayClusterSpec"])


def _ending_faults(spec: Mapping[str, Any], *, shuts_down: bool) -> Iterator[str]:
    if spec.get("suspend") and not shuts_down:
        yield "a RayJob with shutdownAfterJobFinishes set to false is not allowed to be suspended"
    if spec.get("ttlSecondsAfterFinished", 0) and not shuts_down:
        yield "a RayJob with shutdownAfterJobFinishes set to false cannot have TTLSecondsAfterFinished"
    if spec.get("deletionStrategy") and shuts_down:
        yield "deletionRules and shutdownAfterJobFinishes cannot be used together"


def webhook_denial(spec: Mapping[str, Any]) -> str:
    """Why the TPU webhook would refuse a RayCluster; empty where it would not. It knows no machines and no shapes."""
    for group in groups(spec):
        if not group.chips:
            continue
        if not group.topology:
            return "TPU topology not specified"
        if group.hosts == 0 or group.due_hosts != group.hosts:
            found = f"{group.name} has {group.hosts}, {group.topology} makes {group.due_hosts}"
            return f"Number of workers in worker group not equal to specified topology: {found}"
    return ""


def _version(spec: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", spec.get("rayVersion", ""))[:2])
