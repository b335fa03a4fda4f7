"""What must hold in every pod template of a cluster, by its part in it. Pure.

Sources: KubeRay 1.7 (validation.go, pod.go), the TPU webhook 1.3.5, GKE's pages on TPUs and Cloud Storage FUSE.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_raytpu.backends.kuberay import naming, nodes
from airflow_raytpu.backends.kuberay.making import buckets
from airflow_raytpu.backends.kuberay.making.pods import TPU
from airflow_raytpu.backends.kuberay.making.problems import Problem, items, part, whole_number
from airflow_raytpu.model.kuberay_rules import IMPENDING, LABEL_VALUE, OUR_VARIABLES, key_is_valid

_NAME_LABEL = "app.kubernetes.io/name"
_ALLOWED = {"JAX_PLATFORMS", "RAYTPU_ENDPOINT"}
_OWN_TO_POD = ("affinity", "hostname", "subdomain")
_NOT_WITH_CLASS = ("gke-spot", "machine-family", "machine-type", "reservation-", "gke-accelerator", "gke-flex-start")

Template = Mapping[str, Any]


def tpus_of(template: Template, side: str = "limits") -> int | None:
    """Chips of the Ray container; ``None`` where the field is no whole number, 0 where it is not there."""
    containers = items(template, "spec", "containers")
    return whole_number(part(containers[0], "resources", side).get(TPU, 0)) if containers else 0


def any_pod(path: str, template: Template) -> Iterator[Problem]:
    """Of head and workers alike."""
    containers = items(template, "spec", "containers")
    if not containers:
        yield Problem(f"{path}.spec.containers", "empty", "at least the Ray container (KubeRay)")
    for index, container in enumerate(containers):
        where = f"{path}.spec.containers[{container.get('name', index)}]"
        if not container.get("name") or not container.get("image"):
            wanted = f"a container with name and image; Ray's own is called {naming.RAY_CONTAINER!r}"
            yield Problem(where, "without name or image", wanted)
    for container in [*containers[1:], *items(template, "spec", "initContainers")]:
        if TPU in part(container, "resources", "limits") or TPU in part(container, "resources", "requests"):
            where = f"{path}.spec.containers[{container.get('name')}].resources"
            yield Problem(where, f"with {TPU}", "without: Ray's container, the first, has all chips of the node")
    yield from _labels(path, template)
    yield from _variables(path, template)
    yield from _mounts(path, template)
    for toleration in items(template, "spec", "tolerations"):
        if toleration.get("key") in (None, "", IMPENDING):
            yield Problem(f"{path}.spec.tolerations", dict(toleration), f"of one taint by name, and never {IMPENDING}")


def head_pod(path: str, template: Template) -> Iterator[Problem]:
    for side in ("limits", "requests"):
        if tpus_of(template, side):
            yield Problem(f"{path}.spec.containers[0].resources.{side}.{TPU}", tpus_of(template, side), "left out")
    for container in items(template, "spec", "containers")[:1]:
        if "JAX_PLATFORMS" in _names(container):
            yield Problem(f"{path}.spec.containers[0].env[JAX_PLATFORMS]", "set", "left out: no JAX runs on the head")
        ports = [port.get("name") for port in items(container, "ports")]
        if ports and "dashboard" not in ports:
            wanted = "with one called dashboard, 8265: KubeRay adds none where some are listed"
            yield Problem(f"{path}.spec.containers[0].ports", ports, wanted)
    for key in (nodes.ACCELERATOR, nodes.TOPOLOGY):
        if key in part(template, "spec", "nodeSelector"):
            yield Problem(f"{path}.spec.nodeSelector[{key}]", "set", "left out: the head needs no TPU node")


def worker_pod(path: str, template: Template) -> Iterator[Problem]:
    if part(template, "spec").get("restartPolicy") != "Never":
        found = part(template, "spec").get("restartPolicy")
        yield Problem(f"{path}.spec.restartPolicy", found, "'Never': KubeRay replaces a worker, and its slice with it")


def tpu_pod(path: str, template: Template, hosts: int) -> Iterator[Problem]:
    """Of a worker with TPUs.

    :param hosts: of one slice.
    """
    limit, request = tpus_of(template), tpus_of(template, "requests")
    if limit != request or not limit:
        where = f"{path}.spec.containers[0].resources"
        yield Problem(where, f"{TPU} {limit} in limits and {request} in requests", "all chips of the node in both")
    for container in items(template, "spec", "containers")[:1]:
        platforms = _names(container).get("JAX_PLATFORMS")
        if platforms != "tpu,cpu":
            wanted = "'tpu,cpu', or JAX runs on the CPU without a word"
            yield Problem(f"{path}.spec.containers[0].env[JAX_PLATFORMS]", platforms, wanted)
    for name in _OWN_TO_POD if hosts > 1 else ():
        if part(template, "spec").get(name):
            yield Problem(f"{path}.spec.{name}", "set", "left out: the TPU webhook sets it for each host of a slice")
    yield from _provisioning(f"{path}.spec.nodeSelector", part(template, "spec", "nodeSelector"))


def _provisioning(path: str, selector: Mapping[str, Any]) -> Iterator[Problem]:
    reserved = any(str(key).startswith(nodes.RESERVATION) for key in selector)
    chosen = [key for key in (nodes.SPOT, nodes.FLEX_START) if selector.get(key) == "true"]
    if reserved:
        chosen.append(f"{nodes.RESERVATION}name")
    if len(chosen) > 1:
        yield Problem(path, f"with {' and '.join(chosen)}", "with one of them: GKE has no such nodes")
    if nodes.COMPUTE_CLASS in selector:
        mixed = [str(key) for key in selector if str(key).removeprefix(nodes.GKE).startswith(_NOT_WITH_CLASS)]
        if mixed:
            yield Problem(
                path, f"with a ComputeClass and {', '.join(mixed)}", "with the class alone, which says so itself"
            )


def _labels(path: str, template: Template) -> Iterator[Problem]:
    labels = part(template, "metadata", "labels")
    if _NAME_LABEL in labels:
        wanted = "left out: the TPU webhook looks for KubeRay's own value"
        yield Problem(f"{path}.metadata.labels[{_NAME_LABEL}]", labels[_NAME_LABEL], wanted)
    yield from label_problems(f"{path}.metadata.labels", labels)


def label_problems(path: str, labels: Mapping[str, Any]) -> Iterator[Problem]:
    """Labels that the API server refuses."""
    for key, value in labels.items():
        if not isinstance(value, str) or not LABEL_VALUE.fullmatch(value) or not key_is_valid(str(key)):
            wanted = "a key and a text of at most 63 letters, digits, dots, hyphens and underscores"
            yield Problem(f"{path}[{key}]", value, wanted)


def _names(container: Mapping[str, Any]) -> dict[str, Any]:
    return {str(each.get("name")): each.get("value") for each in items(container, "env")}


def _variables(path: str, template: Template) -> Iterator[Problem]:
    for container in items(template, "spec", "containers")[:1]:
        names = [str(each.get("name")) for each in items(container, "env")]
        for name in sorted(set(names)):
            where = f"{path}.spec.containers[0].env[{name}]"
            if names.count(name) > 1:
                yield Problem(where, "there twice", "there once")
            if name.startswith(OUR_VARIABLES) and name not in _ALLOWED:
                yield Problem(where, "set", "left to KubeRay and the TPU webhook")


def _mounts(path: str, template: Template) -> Iterator[Problem]:
    volumes = {str(volume.get("name")): volume for volume in items(template, "spec", "volumes")}
    for container in items(template, "spec", "containers"):
        for mount in items(container, "volumeMounts"):
            if mount.get("name") not in volumes:
                where = f"{path}.spec.containers[{container.get('name')}].volumeMounts"
                yield Problem(where, f"of {mount.get('name')!r}", f"of one of the pod's volumes: {', '.join(volumes)}")
    fused = any(part(volume, "csi").get("driver") == buckets.DRIVER for volume in volumes.values())
    found = part(template, "metadata", "annotations").get(buckets.ANNOTATION)
    if fused and found != "true":
        yield Problem(f"{path}.metadata.annotations[{buckets.ANNOTATION}]", found, "'true', or nothing is mounted")
