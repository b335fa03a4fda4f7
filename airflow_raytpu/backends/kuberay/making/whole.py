"""A cluster as the author wrote it, made fit for the runtime and closed to others. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from airflow_raytpu.backends.kuberay import naming
from airflow_raytpu.backends.kuberay.making import pods
from airflow_raytpu.backends.kuberay.making.invariants import API_VERSION
from airflow_raytpu.backends.kuberay.making.problems import CLUSTER_FIELD, Problem, ill_formed, items, part, refuse
from airflow_raytpu.model.kuberay import KubeRayOptions

_LEVER = "Correct the options' whole."
_METADATA = ("name", "namespace", "labels", "annotations")
"""What may be stated; name and namespace are ours all the same."""


def cluster_of(whole: Mapping[str, Any], kind: str, options: KubeRayOptions) -> dict[str, Any]:
    """The cluster's spec in *whole*, with what we insist on where it says nothing.

    :param kind: of the object to be made; *whole* is one, or a RayCluster.
    :raises ManifestError: it is neither, or not well-formed.
    """
    refuse(_problems(whole, kind), _LEVER)
    refuse(ill_formed(whole), _LEVER)
    inner = CLUSTER_FIELD[whole["kind"]]
    ray: dict[str, Any] = deepcopy(dict(whole["spec"][inner] if inner else whole["spec"]))
    ray.setdefault("rayVersion", options.ray_version)
    ray.setdefault("authOptions", {"mode": "token"})
    for group in (ray["headGroupSpec"], *ray["workerGroupSpecs"]):
        # Of the request that it was copied from; this one's own come instead.
        labels = part(group["template"], "metadata", "labels")
        for key in [key for key in labels if key in naming.LABELS]:
            del group["template"]["metadata"]["labels"][key]
    for container in (ray["headGroupSpec"]["template"].get("spec") or {}).get("containers") or []:
        # Ray's own is the first.
        stated = items(container, "env")
        names = [each.get("name") for each in stated]
        container["env"] = [*stated, *(each for each in pods.head_environment() if each["name"] not in names)]
        break
    return ray


def beside_cluster(whole: Mapping[str, Any] | None, kind: str) -> dict[str, Any]:
    """What *whole* says of a job or service beside its cluster."""
    if whole is None or whole["kind"] != kind:
        return {}
    return {name: deepcopy(value) for name, value in whole["spec"].items() if name != CLUSTER_FIELD[kind]}


def _problems(whole: Mapping[str, Any], kind: str) -> Iterator[Problem]:
    kinds = dict.fromkeys(("RayCluster", kind))
    if whole.get("kind") not in kinds:
        yield Problem("whole.kind", whole.get("kind"), f"{' or '.join(kinds)} for this task")
        return
    if whole.get("apiVersion") != API_VERSION:
        yield Problem("whole.apiVersion", whole.get("apiVersion"), repr(API_VERSION))
    for key in whole.get("metadata") or {}:
        if key not in _METADATA:
            yield Problem(f"whole.metadata.{key}", "set", f"left out; there are {', '.join(_METADATA)}")
    inner = CLUSTER_FIELD[whole["kind"]]
    spec = whole.get("spec")
    ray = spec.get(inner) if inner and isinstance(spec, Mapping) else spec
    where = f"whole.spec.{inner}" if inner else "whole.spec"
    if not isinstance(ray, Mapping):
        yield Problem(where, ray, "an object")
        return
    groups = ray.get("workerGroupSpecs")
    if not isinstance(groups, list):
        yield Problem(f"{where}.workerGroupSpecs", groups, "a list")
        return
    named = {f"workerGroupSpecs[{index}]": group for index, group in enumerate(groups)}
    for name, group in {"headGroupSpec": ray.get("headGroupSpec"), **named}.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("template"), Mapping):
            yield Problem(f"{where}.{name}.template", None, "an object")
