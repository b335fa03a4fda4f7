"""What a real cluster would say to an object, written down from the others' side and apart from our own rules.

- the API server: KubeRay's own CRDs (1.7), with unknown fields refused, and Kubernetes' rules for labels and names
- KubeRay's reconcilers (ray-operator validation.go, 1.7)
- the TPU webhook (kuberay-tpu-webhook 1.3.5)
- Kueue's webhooks (0.19)
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from copy import deepcopy
from math import prod
from typing import Any

import jsonschema
import pytest
import yaml

from tests.doubles.kubernetes import metadata
from tests.doubles.kubernetes.kinds import crd_objects, crds_folder, from_crd

INNER = {"RayCluster": (), "RayJob": ("rayClusterSpec",), "RayService": ("rayClusterConfig",)}
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def refusals(made: dict[str, Any]) -> list[str]:
    """All that anybody would say against *made*."""
    return [*api_server(made), *kuberay(made), *tpu_webhook(made), *kueue(made)]


def api_server(made: dict[str, Any]) -> Iterator[str]:
    kind, validator = _validator(made["kind"])
    for error in validator.iter_errors(made):
        yield f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
    for cause in metadata.faults(kind, made["metadata"]):
        yield str(cause)
    for template in templates(made):
        for cause in metadata.faults(kind, {"name": "x", **template.get("metadata", {})}):
            yield f"pod: {cause}"


def kuberay(made: dict[str, Any]) -> Iterator[str]:
    name, spec = made["metadata"]["name"], cluster(made)
    if not _DNS_1035.fullmatch(name) or len(name) > (53 if made["kind"] == "RayCluster" else 47):
        yield f"name {name}"
    groups = spec["workerGroupSpecs"]
    if len({group["groupName"] for group in groups}) < len(groups):
        yield "duplicate group names"
    version = tuple(map(int, spec["rayVersion"].split(".")[:3]))
    if spec["authOptions"] != {"mode": "token"} or version < (2, 52, 0):
        yield "authentication"
    autoscaling = bool(spec.get("enableInTreeAutoscaling"))
    for group in (spec["headGroupSpec"], *groups):
        yield from _ray_group(group, autoscaling and spec.get("autoscalerOptions", {}).get("version") == "v2")
    for group in groups:
        if not 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]:
            yield f"replicas of {group['groupName']}"
    yield from {"RayJob": _ray_job, "RayService": _ray_service}.get(made["kind"], _nothing)(made["spec"])


def _ray_group(group: dict[str, Any], is_scaled: bool) -> Iterator[str]:
    pod, parameters = group["template"]["spec"], set(group.get("rayStartParams", {}))
    if not pod["containers"]:
        yield "no container"
    if "labels" in parameters or (group.get("resources") and {"num-cpus", "memory", "resources"} & parameters):
        yield "rayStartParams"
    if is_scaled and pod.get("restartPolicy") not in (None, "Never"):
        yield "restartPolicy with autoscaler v2"
    names = {each["name"] for each in pod["containers"][0].get("env", ())}
    if {"RAY_REDIS_ADDRESS", "REDIS_USERNAME", "RAY_enable_autoscaler_v2"} & names:
        yield "environment"


def tpu_webhook(made: dict[str, Any]) -> Iterator[str]:
    """Of the child cluster, whose name gets a suffix of 6 characters where it is a job's or a service's."""
    name = made["metadata"]["name"] + ("" if made["kind"] == "RayCluster" else "-xxxxx")
    for group in cluster(made)["workerGroupSpecs"]:
        spec = group["template"]["spec"]
        chips = sum(_tpus(container, "requests") or _tpus(container, "limits") for container in spec["containers"])
        if not chips:
            continue
        topology = spec.get("nodeSelector", {}).get("cloud.google.com/gke-tpu-topology")
        hosts = group.get("numOfHosts", 1)
        if topology is None:
            yield "TPU topology not specified"
        elif not hosts or max(prod(map(int, topology.split("x"))) // chips, 1) != hosts:
            yield "Number of workers in worker group not equal to specified topology"
        if hosts > 1 and len(name) > 41:
            yield f"headless name of {name}"
        if len(f"{group['groupName']}-{max(group['maxReplicas'] - 1, 0)}-{hosts - 1}") > 63:
            yield f"hostname of {group['groupName']}"


def kueue(made: dict[str, Any]) -> Iterator[str]:
    labels, spec = made["metadata"]["labels"], cluster(made)
    if "kueue.x-k8s.io/queue-name" not in labels:
        return
    if len(spec["workerGroupSpecs"]) > 17:
        yield "too many pod sets"
    if any(group["groupName"] == "head" for group in spec["workerGroupSpecs"]):
        yield "a group called head"
    elastic = made["metadata"]["annotations"].get("kueue.x-k8s.io/elastic-job") == "true"
    if spec.get("enableInTreeAutoscaling") and not elastic:
        yield "autoscaling"
    if "suspend" in spec or "suspend" in made["spec"]:
        yield "suspend"
    if made["kind"] == "RayJob" and made["spec"].get("shutdownAfterJobFinishes") is not True:
        yield "shutdownAfterJobFinishes"


def cluster(made: dict[str, Any]) -> dict[str, Any]:
    """The cluster's own spec, wherever it is."""
    return functools.reduce(lambda value, name: value[name], INNER[made["kind"]], made["spec"])


def templates(made: dict[str, Any]) -> list[dict[str, Any]]:
    spec = cluster(made)
    return [group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def _ray_job(spec: dict[str, Any]) -> Iterator[str]:
    if spec["ttlSecondsAfterFinished"] < 0 or not spec["shutdownAfterJobFinishes"]:
        yield "ttl"
    if spec["activeDeadlineSeconds"] <= 0 or spec["preRunningDeadlineSeconds"] <= 0 or spec["backoffLimit"] < 0:
        yield "deadlines"
    if spec["submissionMode"] not in ("HTTPMode", "K8sJobMode"):
        yield "submissionMode"
    if not isinstance(yaml.safe_load(spec["runtimeEnvYAML"]), dict):
        yield "runtimeEnvYAML"


def _ray_service(spec: dict[str, Any]) -> Iterator[str]:
    if spec["upgradeStrategy"]["type"] not in ("NewCluster", "NewClusterWithIncrementalUpgrade", "None"):
        yield "upgradeStrategy"
    if "applications" not in yaml.safe_load(spec["serveConfigV2"]):
        yield "serveConfigV2"


def _nothing(spec: dict[str, Any]) -> Iterator[str]:
    yield from ()


def _tpus(container: dict[str, Any], side: str) -> int:
    return int(container.get("resources", {}).get(side, {}).get("google.com/tpu", 0))


@functools.cache
def _validator(kind: str) -> tuple[Any, jsonschema.Draft202012Validator]:
    folder = crds_folder()
    if folder is None:
        pytest.skip("KubeRay's CRDs are not here; RAYTPU_KUBERAY_CRDS names their folder")
    (crd,) = (each for each in crd_objects(folder) if each["spec"]["names"]["kind"] == kind)
    found = from_crd(crd)
    schema = deepcopy(found.schemas["v1"])
    # Kubernetes checks these by rules of its own.
    for name in ("apiVersion", "kind", "metadata"):
        schema["properties"][name] = {}
    return found, jsonschema.Draft202012Validator(_strict(schema))


def _strict(schema: Any) -> Any:
    """The schema with what is not in it refused, in JSON Schema's words."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"], **{key: schema[key] for key in ("pattern",) if key in schema}}
    found = {}
    for key, value in schema.items():
        if key in ("properties", "patternProperties"):
            found[key] = {name: _strict(each) for name, each in value.items()}
        elif key not in ("description", "format", "default"):
            found[key] = _strict(value)
    if "properties" in found and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found
