"""What must hold in a cluster's spec: what KubeRay and the TPU webhook refuse, mostly without a word. Pure.

Sources: KubeRay 1.7 (validation.go), the TPU webhook 1.3.5, Ray 2.60's placement on fake nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_raytpu.backends.kuberay import nodes
from airflow_raytpu.backends.kuberay.making import pod_rules
from airflow_raytpu.backends.kuberay.making.problems import Problem, items, part, whole_number
from airflow_raytpu.model.kuberay_rules import DNS_LABEL, MIN_RAY, ray_version
from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.catalogue import Shape

_POD_NAME_LIMIT = 63
_RESOURCE_PARAMETERS = ("num-cpus", "num-gpus", "memory", "resources")

Spec = Mapping[str, Any]


def problems(path: str, spec: Spec) -> Iterator[Problem]:
    """Every rule of this file, and those of the pods.

    :param path: of *spec* in its object.
    """
    yield from _cluster(path, spec)
    head = part(spec, "headGroupSpec")
    yield from _group_parameters(f"{path}.headGroupSpec", head)
    template = part(head, "template")
    yield from pod_rules.any_pod(f"{path}.headGroupSpec.template", template)
    yield from pod_rules.head_pod(f"{path}.headGroupSpec.template", template)
    groups = items(spec, "workerGroupSpecs")
    for name, times in Counter(group.get("groupName") for group in groups).items():
        if times > 1:
            yield Problem(f"{path}.workerGroupSpecs[{name}]", f"there {times} times", "there once")
    for group in groups:
        yield from _group(f"{path}.workerGroupSpecs[{group.get('groupName')}]", group)
    yield from _one_shape(f"{path}.workerGroupSpecs", groups)
    if spec.get("enableInTreeAutoscaling"):
        yield from _autoscaling(path, spec)


def shape_of(group: Spec) -> Shape | None:
    """The catalogue's row of a TPU group; ``None`` where GKE has none such, or it has no TPU."""
    selector = part(group, "template", "spec", "nodeSelector")
    chips = pod_rules.tpus_of(part(group, "template"))
    for row in catalogue.shapes():
        wanted = row.node_selector
        if row.chips_per_host == chips and all(selector.get(key) == value for key, value in wanted.items()):
            return row
    return None


def has_tpus(group: Spec) -> bool:
    template = part(group, "template")
    selector = part(template, "spec", "nodeSelector")
    asks = pod_rules.tpus_of(template) != 0 or pod_rules.tpus_of(template, "requests") != 0
    return asks or nodes.ACCELERATOR in selector or nodes.TOPOLOGY in selector


def _cluster(path: str, spec: Spec) -> Iterator[Problem]:
    version = spec.get("rayVersion")
    parsed = ray_version(version) if isinstance(version, str) else None
    if parsed is None or parsed < MIN_RAY:
        yield Problem(f"{path}.rayVersion", version, "the image's Ray version, 2.53.0 or later (KubeRay picks by it)")
    mode = part(spec, "authOptions").get("mode")
    if mode != "token":
        yield Problem(f"{path}.authOptions.mode", mode, "'token', written out: without it anybody may run code there")
    if spec.get("suspend") is not None:
        yield Problem(f"{path}.suspend", spec["suspend"], "left out: Kueue's to set")
    for name, value in part(spec, "headGroupSpec").items():
        if name == "headService" and part(value or {}, "metadata").get("name"):
            yield Problem(f"{path}.headGroupSpec.headService.metadata.name", "set", "left to KubeRay")
    if not items(spec, "workerGroupSpecs"):
        yield Problem(f"{path}.workerGroupSpecs", "empty", "at least the group of the request's slices")


def _group_parameters(path: str, group: Spec) -> Iterator[Problem]:
    parameters = part(group, "rayStartParams")
    for name, value in parameters.items():
        if not isinstance(value, str):
            yield Problem(f"{path}.rayStartParams[{name}]", value, "text: quote it")
    if "labels" in parameters:
        yield Problem(f"{path}.rayStartParams[labels]", "set", "in the group's own labels")
    both = [name for name in _RESOURCE_PARAMETERS if parameters.get(name)]
    if both and part(group, "resources"):
        yield Problem(f"{path}.resources", f"set beside rayStartParams[{both[0]}]", "set in one of the two places")


def _group(path: str, group: Spec) -> Iterator[Problem]:
    template = part(group, "template")
    yield from _group_parameters(path, group)
    yield from _counts(path, group)
    yield from pod_rules.any_pod(f"{path}.template", template)
    yield from pod_rules.worker_pod(f"{path}.template", template)
    hosts = whole_number(group.get("numOfHosts", 1))
    if has_tpus(group):
        yield from pod_rules.tpu_pod(f"{path}.template", template, hosts or 0)
        yield from _tpu_group(path, group, hosts)
    elif hosts != 1:
        yield Problem(f"{path}.numOfHosts", group.get("numOfHosts"), "1 in a group without TPUs")


def _counts(path: str, group: Spec) -> Iterator[Problem]:
    name = group.get("groupName")
    if not isinstance(name, str) or not DNS_LABEL.fullmatch(name):
        yield Problem(f"{path}.groupName", name, "small letters, digits and hyphens, no hyphen first or last")
    counts = [whole_number(group.get(key)) for key in ("minReplicas", "replicas", "maxReplicas")]
    least, replicas, most = counts
    if least is None or replicas is None or most is None or not least <= replicas <= most:
        stated = {key: group.get(key) for key in ("minReplicas", "replicas", "maxReplicas")}
        wanted = "all three stated and in order: KubeRay's own are 0, 0 and 2147483647"
        yield Problem(f"{path}.replicas", stated, wanted)
        return
    hosts = whole_number(group.get("numOfHosts", 1)) or 1
    host = f"{name}-{max(most - 1, 0)}-{hosts - 1}"
    if len(host) > _POD_NAME_LIMIT:
        wanted = f"at most {_POD_NAME_LIMIT} characters with replica and host, {host}: the TPU webhook names hosts so"
        yield Problem(f"{path}.groupName", name, wanted)


def _tpu_group(path: str, group: Spec, hosts: int | None) -> Iterator[Problem]:
    selector = part(group, "template", "spec", "nodeSelector")
    for key in (nodes.ACCELERATOR, nodes.TOPOLOGY):
        if key not in selector:
            wanted = "stated: the TPU webhook and Ray's autoscaler each need it"
            yield Problem(f"{path}.template.spec.nodeSelector[{key}]", None, wanted)
            return
    row = shape_of(group)
    if row is None:
        chips = pod_rules.tpus_of(part(group, "template"))
        found = f"{selector[nodes.ACCELERATOR]} {selector[nodes.TOPOLOGY]} with {chips} chips a pod"
        yield Problem(f"{path}.template", found, "a shape that GKE has: see the list of slices")
    elif hosts != row.hosts:
        wanted = f"{row.hosts}: {row.topology} has {row.chips} chips, {row.chips_per_host} in a host (TPU webhook)"
        yield Problem(f"{path}.numOfHosts", hosts, wanted)
    elif hosts == 1 and (whole_number(group.get("maxReplicas")) or 0) > 1:
        wanted = "1, with a group for each: the TPU webhook gives a replaced single host a wrong index"
        yield Problem(f"{path}.maxReplicas", group.get("maxReplicas"), wanted)


def _one_shape(path: str, groups: list[Spec]) -> Iterator[Problem]:
    shapes = {str(row.topology + " of " + row.machine_type) for row in map(shape_of, groups) if row is not None}
    if len(shapes) > 1:
        yield Problem(path, " and ".join(sorted(shapes)), "of one shape: Ray takes a host out of another slice")
    if groups and not any(map(has_tpus, groups)):
        yield Problem(path, "without TPUs", "with the group of the request's slices")


def _autoscaling(path: str, spec: Spec) -> Iterator[Problem]:
    version = part(spec, "autoscalerOptions").get("version")
    if version != "v2":
        yield Problem(f"{path}.autoscalerOptions.version", version, "'v2', written out")
    policy = part(spec, "headGroupSpec", "template", "spec").get("restartPolicy")
    if policy not in (None, "Never"):
        yield Problem(
            f"{path}.headGroupSpec.template.spec.restartPolicy", policy, "'Never' or left out (autoscaler v2)"
        )
    for group in items(spec, "workerGroupSpecs"):
        if group.get("suspend"):
            yield Problem(f"{path}.workerGroupSpecs[{group.get('groupName')}].suspend", "set", "left out")
