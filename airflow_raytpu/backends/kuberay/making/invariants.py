"""What must hold in any object that we create, whoever wrote it: the last look before it is sent. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_raytpu.backends import rayjobs
from airflow_raytpu.backends.kuberay import naming
from airflow_raytpu.backends.kuberay.making import cluster_rules, feature_rules, kueue, pod_rules
from airflow_raytpu.backends.kuberay.making.problems import (
    CLUSTER_FIELD,
    Problem,
    ill_formed,
    items,
    part,
    read_yaml,
    refuse,
    whole_number,
)
from airflow_raytpu.model.identity import CLUSTER_NAME_LIMIT, JOB_NAME_LIMIT

API_VERSION = "ray.io/v1"
SIZE_LIMIT = 1_400_000
"""Bytes of JSON; etcd takes 1.5 MB, and answers 500 to more (Kubernetes 1.36)."""

ANNOTATIONS_LIMIT = 256 * 1024
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")


def check(made: Mapping[str, Any]) -> None:
    """:raises ManifestError: a rule of ours, KubeRay's, GKE's or Kueue's is broken; the message names the fields."""
    check_form(made)
    refuse(_problems(made))


def check_form(made: Mapping[str, Any]) -> None:
    """That it can be looked into at all: part of :func:`check`.

    :raises ManifestError: it is no object of KubeRay's, or a field is of another kind than what lies in it.
    """
    refuse(_kind(made))
    refuse(ill_formed(made))


def _kind(made: Mapping[str, Any]) -> Iterator[Problem]:
    if made.get("kind") not in list(CLUSTER_FIELD):
        yield Problem("kind", made.get("kind"), f"one of {', '.join(CLUSTER_FIELD)}")
    if made.get("apiVersion") != API_VERSION:
        yield Problem("apiVersion", made.get("apiVersion"), repr(API_VERSION))
    for name in ("metadata", "spec"):
        if not made.get(name):
            yield Problem(name, made.get(name), "an object")


def _problems(made: Mapping[str, Any]) -> Iterator[Problem]:
    kind, spec = made["kind"], made["spec"]
    inner = CLUSTER_FIELD[kind]
    yield from _metadata(made)
    if kind == "RayJob":
        yield from _job(made)
    if kind == "RayService":
        yield from _service(spec)
    path, ray = (f"spec.{inner}", part(spec, inner)) if inner else ("spec", spec)
    if inner and ray.get("upgradeStrategy"):
        yield Problem(f"{path}.upgradeStrategy", "set", f"left out in a {kind} (KubeRay)")
    yield from cluster_rules.problems(path, ray)
    yield from feature_rules.problems(path, ray, part(made["metadata"], "annotations"))
    yield from _our_labels(path, ray)
    yield from kueue.problems(made, path, ray)


def _metadata(made: Mapping[str, Any]) -> Iterator[Problem]:
    metadata = made["metadata"]
    name, labels, annotations = metadata.get("name"), part(metadata, "labels"), part(metadata, "annotations")
    limit = CLUSTER_NAME_LIMIT if made["kind"] == "RayCluster" else JOB_NAME_LIMIT
    if not isinstance(name, str) or not _DNS_1035.fullmatch(name) or len(name) > limit:
        wanted = f"at most {limit} small letters, digits and hyphens, or hosts do not find one another"
        yield Problem("metadata.name", name, wanted)
    for key in ("generateName", "ownerReferences", "finalizers"):
        if metadata.get(key):
            yield Problem(f"metadata.{key}", "set", "left out: the object is found and deleted by its own name")
    for key in (*naming.LABELS, naming.MANAGED_BY):
        if key not in labels:
            yield Problem(f"metadata.labels[{key}]", None, "as we set it: by it the object is found")
    for key in (naming.OWNER, naming.TTL, naming.HEARTBEAT, naming.SLICE):
        if key not in annotations:
            yield Problem(f"metadata.annotations[{key}]", None, "as we set it")
    yield from pod_rules.label_problems("metadata.labels", labels)
    yield from _sizes(made, annotations)


def _sizes(made: Mapping[str, Any], annotations: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in annotations.items():
        if not isinstance(value, str):
            yield Problem(f"metadata.annotations[{key}]", value, "text: quote it")
    noted = len(json.dumps(dict(annotations), default=str).encode())
    if noted > ANNOTATIONS_LIMIT:
        yield Problem("metadata.annotations", f"{noted:,} bytes", f"at most {ANNOTATIONS_LIMIT:,} (Kubernetes)")
    size = len(json.dumps(made, default=str).encode())
    if size > SIZE_LIMIT:
        yield Problem("the object", f"{size:,} bytes of JSON", f"at most {SIZE_LIMIT:,}: etcd takes no more")


def _our_labels(path: str, ray: Mapping[str, Any]) -> Iterator[Problem]:
    templates = {"headGroupSpec": part(ray, "headGroupSpec", "template")}
    for group in items(ray, "workerGroupSpecs"):
        templates[f"workerGroupSpecs[{group.get('groupName')}]"] = part(group, "template")
    for name, template in templates.items():
        missing = [key for key in naming.LABELS if key not in part(template, "metadata", "labels")]
        if missing:
            wanted = f"with {missing[0]}: by it the pod is found"
            yield Problem(f"{path}.{name}.template.metadata.labels", "without it", wanted)


def _job(made: Mapping[str, Any]) -> Iterator[Problem]:
    spec = made["spec"]
    for name, value, why in (
        ("submissionMode", "HTTPMode", "a submitter pod would be tried again by itself"),
        ("shutdownAfterJobFinishes", True, "or the TPUs are kept"),
        ("backoffLimit", 0, "the next attempt is Airflow's to make"),
        ("jobId", made["metadata"].get("name"), "the object's name, by which the job is found"),
    ):
        if spec.get(name) != value or isinstance(spec.get(name), bool) is not isinstance(value, bool):
            yield Problem(f"spec.{name}", spec.get(name), f"{value!r}, {why}")
    for name in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if not whole_number(spec.get(name)):
            yield Problem(f"spec.{name}", spec.get(name), "seconds above 0, or the TPUs are kept when Airflow is gone")
    if whole_number(spec.get("ttlSecondsAfterFinished")) is None:
        yield Problem("spec.ttlSecondsAfterFinished", spec.get("ttlSecondsAfterFinished"), "seconds, 0 or more")
    entrypoint = spec.get("entrypoint")
    if not isinstance(entrypoint, str) or not entrypoint.startswith(f"{rayjobs.ENTRYPOINT} "):
        yield Problem("spec.entrypoint", entrypoint, f"'{rayjobs.ENTRYPOINT} ...' as we set it")
    yield from _yaml("spec.runtimeEnvYAML", spec.get("runtimeEnvYAML"))
    for name in ("clusterSelector", "submitterPodTemplate", "submitterConfig", "suspend", "deletionStrategy"):
        if spec.get(name) is not None:
            yield Problem(f"spec.{name}", "set", "left out: the job has a cluster of its own, which goes with it")


def _service(spec: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _yaml("spec.serveConfigV2", spec.get("serveConfigV2"))
    kind = part(spec, "upgradeStrategy").get("type")
    if kind not in _UPGRADES:
        yield Problem("spec.upgradeStrategy.type", kind, f"one of {', '.join(_UPGRADES)}, written out")
    yield from feature_rules.upgrade_problems(spec)
    if spec.get("suspend") is not None:
        yield Problem("spec.suspend", spec["suspend"], "left out")


def _yaml(path: str, text: Any) -> Iterator[Problem]:
    if read_yaml(text) is None:
        yield Problem(path, text, "an object as YAML")
