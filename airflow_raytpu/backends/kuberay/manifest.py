"""A request as the Kubernetes object that carries it out. Pure: the same request gives the same object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from airflow_raytpu.backends.kuberay import naming
from airflow_raytpu.backends.kuberay.making import cluster, cluster_rules, jobs, kueue, overlay, serving, whole
from airflow_raytpu.backends.kuberay.making.invariants import API_VERSION, check, check_form
from airflow_raytpu.backends.kuberay.making.problems import CLUSTER_FIELD, Problem, items, part, refuse, whole_number
from airflow_raytpu.model.elastic import Elastic
from airflow_raytpu.model.errors import ManifestError
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.kuberay_rules import check_together
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.placement.topology import TpuSlice

__all__ = ["API_VERSION", "check", "manifest"]

_KINDS = {Kind.CLUSTER: "RayCluster", Kind.SERVE: "RayService"}


def manifest(request: RayRequest, options: KubeRayOptions, now: float) -> dict[str, Any]:
    """The RayCluster, RayJob or RayService of *request*.

    :param now: seconds since the epoch.
    :raises ManifestError: options that do not go together, or an object that breaks a rule of ours, KubeRay's, GKE's or
        Kueue's.
    :raises SliceShapeError: the slice cannot be read.
    """
    _refuse_unfit(request, options)
    options = _scaled(request, options)
    check_together(options)
    kind = _KINDS.get(request.kind, "RayJob")
    ray = cluster.spec(request, options) if options.whole is None else whole.cluster_of(options.whole, kind, options)
    made: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": _metadata(request, options, now),
        "spec": _spec(kind, request, options, ray, now),
    }
    made = _overlaid(made, options)
    check_form(made)
    _label_pods(made, request)
    refuse(_strangers(made, request, options, now))
    check(made)
    refuse(_slices(made, request))
    return made


def _scaled(request: RayRequest, options: KubeRayOptions) -> KubeRayOptions:
    """*options* with which the cluster of an elastic task grows as that asks for slices."""
    elastic = Elastic.of(request.arguments)
    if elastic is None or elastic.least == elastic.most:
        return options
    # KubeRay submits a job once all hosts are there, so those it may do without must come by the autoscaler.
    in_queue = options.elastic or bool(options.queue)
    return replace(options, autoscaling=True, min_slices=elastic.least, max_slices=elastic.most, elastic=in_queue)


def _refuse_unfit(request: RayRequest, options: KubeRayOptions) -> None:
    if not request.owns_cluster:
        raise ManifestError(
            f"{request.name} runs on the cluster {request.cluster_name} and has no object of its own.",
            "Submit it there over the Ray Jobs API.",
        )
    asked = TpuSlice.parse(request.slice)
    if asked.part_of:
        raise ManifestError(
            f"{asked} is a part of a slice, and GKE gives whole ones.",
            f"Run it on a cluster of {asked.accelerator}:{asked.part_of}, with cluster=, or ask for a whole slice.",
        )
    if not options.image and options.whole is None:
        raise ManifestError(
            "There is no image for the Ray cluster.", 'Give "image" in the connection, or in the options of the task.'
        )


def _spec(kind: str, request: RayRequest, options: KubeRayOptions, ray: dict[str, Any], now: float) -> dict[str, Any]:
    if kind == "RayCluster":
        return ray
    stated = whole.beside_cluster(options.whole, kind)
    ours = jobs.fields(request, options, now) if kind == "RayJob" else serving.fields(request)
    return {**stated, **ours, CLUSTER_FIELD[kind]: ray}


def _metadata(request: RayRequest, options: KubeRayOptions, now: float) -> dict[str, Any]:
    """Name, labels and annotations of the top-level object."""
    stated = part(options.whole or {}, "metadata")
    return {
        "name": request.name,
        "namespace": options.namespace,
        "labels": {**part(stated, "labels"), **options.labels, **_own_labels(request, options)},
        "annotations": {**part(stated, "annotations"), **options.annotations, **_own_notes(request, options, now)},
    }


def _own_labels(request: RayRequest, options: KubeRayOptions) -> dict[str, str]:
    return {**kueue.labels(options), naming.MANAGED_BY: naming.MANAGER, **naming.labels(request)}


def _own_notes(request: RayRequest, options: KubeRayOptions, now: float) -> dict[str, str]:
    found = {**kueue.queue_annotations(options), **naming.own_annotations(request, now)}
    return found | serving.notes(request) if request.kind is Kind.SERVE else found


def _overlaid(made: dict[str, Any], options: KubeRayOptions) -> dict[str, Any]:
    """*made* under the author's overlays: pod templates first, then the whole object."""
    inner = CLUSTER_FIELD[made["kind"]]
    if options.pod_template:
        ray = made["spec"][inner] if inner else made["spec"]
        for group in (ray["headGroupSpec"], *ray["workerGroupSpecs"]):
            group["template"] = overlay.merge(group["template"], options.pod_template, "pod_template")
    if options.manifest:
        made = overlay.merge(made, options.manifest)
    return made


def _label_pods(made: Mapping[str, Any], request: RayRequest) -> None:
    """Our labels on the pods of groups that the author brings; where he says otherwise, :func:`_strangers` does."""
    for _, group in _named_groups(_cluster_of(made)[0], head=True):
        template = group.get("template")
        if template:
            stated = part(template, "metadata")
            template["metadata"] = {**stated, "labels": {**naming.labels(request), **part(stated, "labels")}}


def _strangers(made: Mapping[str, Any], request: RayRequest, options: KubeRayOptions, now: float) -> Iterator[Problem]:
    """Where *made* is not what *request* asks for, after what the author laid over it."""
    metadata, spec = made["metadata"], made["spec"]
    kind = _KINDS.get(request.kind, "RayJob")
    if made["kind"] != kind:
        yield Problem("kind", made["kind"], repr(kind))
        return
    pairs = {"name": request.name, "namespace": options.namespace}
    yield from _differing("metadata", metadata, pairs)
    yield from _differing("metadata.labels", part(metadata, "labels"), _own_labels(request, options))
    yield from _differing("metadata.annotations", part(metadata, "annotations"), _own_notes(request, options, now))
    if kind == "RayJob":
        ours = jobs.fields(request, options, now)
        yield from _differing("spec", spec, {name: ours[name] for name in jobs.EXACT})
        yield from jobs.runtime_env_problems(spec.get("runtimeEnvYAML"), request)
    if kind == "RayService":
        # It must be to the letter what a rollout states, and what takes its place once that has proven good.
        yield from _differing("spec", spec, {serving.CONFIG: serving.fields(request)[serving.CONFIG]})
    ray, path = _cluster_of(made)
    wanted = naming.labels(request)
    for name, group in _named_groups(ray, head=True):
        labels = part(group, "template", "metadata", "labels")
        yield from _differing(f"{path}.{name}.template.metadata.labels", {**wanted, **labels}, wanted)


def _differing(path: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in wanted.items():
        if found.get(key) != value:
            yield Problem(f"{path}.{key}", found.get(key), f"{value!r}: it is ours")


def _named_groups(ray: Mapping[str, Any], *, head: bool = False) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if head:
        yield "headGroupSpec", part(ray, "headGroupSpec")
    for group in items(ray, "workerGroupSpecs"):
        yield f"workerGroupSpecs[{group.get('groupName')}]", group


def _slices(made: Mapping[str, Any], request: RayRequest) -> Iterator[Problem]:
    """Where the groups do not hold the request's slices, or more or fewer than it asks for."""
    asked, count = TpuSlice.parse(request.slice), 0
    ray, path = _cluster_of(made)
    for name, group in _named_groups(ray):
        row = cluster_rules.shape_of(group)
        if row is None:
            continue
        if row != asked.shape:
            yield Problem(f"{path}.{name}", f"{row.topology} of {row.machine_type}", f"{asked}, which is asked for")
            return
        count += whole_number(group.get("replicas")) or 0
    elastic = Elastic.of(request.arguments) or Elastic(asked.num_slices, asked.num_slices)
    if not elastic.least <= count <= elastic.most:
        wanted = f"{elastic.least}, as asked for: say in slice= how many"
        yield Problem(f"{path}.workerGroupSpecs", f"{count} slices of {asked.topology}", wanted)


def _cluster_of(made: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The cluster's own spec, and its path."""
    inner = CLUSTER_FIELD[made["kind"]]
    return (part(made["spec"], inner), f"spec.{inner}") if inner else (made["spec"], "spec")
