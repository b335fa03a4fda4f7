"""Pod templates of head and workers. Pure."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from airflow_raytpu.backends.kuberay import naming, nodes
from airflow_raytpu.backends.kuberay.making import buckets, keeping
from airflow_raytpu.model.kuberay import KubeRayOptions, Resources
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.placement.groups import WorkerGroup
from airflow_raytpu.placement.topology import TpuSlice

TPU = "google.com/tpu"
SERVE_PORT = 8000

_CPUS_PER_CHIP = 4
_GIB_PER_CHIP = 24
"""Well below what any TPU machine has: the smallest, ct5lp-hightpu-1t, has 24 CPUs and 48 GB for its one chip."""
_GIB_PER_CPU = 4

_PORTS = {"gcs-server": 6379, "dashboard": 8265, "serve": SERVE_PORT, "metrics": 8080}
"""Without the Ray client's: nobody here uses it. Where ports are listed, KubeRay adds none, and needs the dashboard."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Room for a last checkpoint between SIGTERM and SIGKILL; Ray's own default is 3 s.
    "RAY_JOB_STOP_WAIT_TIME_S": "30",
}
_HEAD_ENVIRONMENT = {
    # Where Serve listens, and where a rollout's smoke requests go: the head alone carries a proxy. Others reach it by
    # a Service, whose name only a shared cluster and a RayService know beforehand.
    "RAYTPU_ENDPOINT": f"http://0.0.0.0:{SERVE_PORT}",
    # A host that refuses connections is gone after 4 s (by default 15 s), a silent one after 18 s (65 s). Until then
    # what the others say of it looks like the author's error.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
}

_SERVICES = {Kind.CLUSTER: "head-svc", Kind.SERVE: "serve-svc"}
"""The Services that KubeRay makes, by which others reach an application (1.7)."""

_ALIVE = {"httpGet": {"path": "/api/healthz", "port": 52365}, "initialDelaySeconds": 10, "failureThreshold": 10}
"""Whether Ray's agent on a worker is well, as KubeRay asks of other workers (1.7, Ray 2.53 and up)."""


def head(request: RayRequest, options: KubeRayOptions) -> dict[str, Any]:
    """The head's pod: no TPU and no JAX, and so on no TPU node."""
    environment = _ENVIRONMENT | _HEAD_ENVIRONMENT
    if (service := _SERVICES.get(request.kind)) is not None:
        public = f"http://{request.name}-{service}.{options.namespace}.svc:{SERVE_PORT}"
        environment |= {"RAYTPU_PUBLIC_ENDPOINT": public}
    container = _container(options, options.head, environment)
    container["ports"] = [{"name": name, "containerPort": port} for name, port in _PORTS.items()]
    template = _template(request, options, container)
    if request.kind is Kind.CLUSTER:
        # A job's cluster has KubeRay's deadlines; a shared one has nobody but Airflow to end it.
        template["spec"]["containers"].append(keeping.container(request, options))
    return template


def head_environment() -> list[dict[str, str]]:
    """What the runtime needs on any head."""
    return [{"name": name, "value": value} for name, value in (_ENVIRONMENT | _HEAD_ENVIRONMENT).items()]


def worker(request: RayRequest, options: KubeRayOptions, group: WorkerGroup, tpu_slice: TpuSlice) -> dict[str, Any]:
    """A worker's pod: one whole host of a slice, or one of a group without TPUs."""
    platforms = "tpu,cpu" if group.tpus else "cpu"
    container = _container(options, _resources(options, group), _ENVIRONMENT | {"JAX_PLATFORMS": platforms})
    template = _template(request, options, container)
    spec = template["spec"]
    # KubeRay replaces a lost worker, and of a multi-host slice all of them: one alone must not come back by itself.
    spec["restartPolicy"] = "Never"
    if options.grace_s is not None:
        spec["terminationGracePeriodSeconds"] = round(options.grace_s)
    if request.kind is Kind.SERVE:
        # KubeRay's own asks for a proxy of Serve on each worker (1.7), and only the head has one.
        container["readinessProbe"] = deepcopy(_ALIVE)
    if group.tpus:
        _on_tpus(container, spec, options, group, tpu_slice)
    return template


def _on_tpus(
    container: dict[str, Any], spec: dict[str, Any], options: KubeRayOptions, group: WorkerGroup, tpu_slice: TpuSlice
) -> None:
    for side in ("limits", "requests"):
        container["resources"][side][TPU] = str(group.tpus)
    if options.privileged:
        container["securityContext"] = {"privileged": True}
    spec["nodeSelector"] = group.node_selector | nodes.selector(options, tpu_slice)
    tolerations = nodes.tolerations(options)
    if tolerations:
        spec["tolerations"] = tolerations


def _resources(options: KubeRayOptions, group: WorkerGroup) -> Resources:
    if not group.tpus:
        cpus = next(each.cpus for each in options.cpu_groups if each.name == group.name)
        return Resources(cpu=str(cpus), memory=f"{cpus * _GIB_PER_CPU}Gi")
    return options.worker or Resources(cpu=str(group.tpus * _CPUS_PER_CHIP), memory=f"{group.tpus * _GIB_PER_CHIP}Gi")


def _container(options: KubeRayOptions, resources: Resources, environment: dict[str, str]) -> dict[str, Any]:
    requests = {"cpu": resources.cpu, "memory": resources.memory}
    if resources.ephemeral_storage:
        requests["ephemeral-storage"] = resources.ephemeral_storage
    container: dict[str, Any] = {
        "name": naming.RAY_CONTAINER,
        "image": options.image,
        "env": _environment(options, environment),
        # No limit on CPU: compiling takes all that the host has, and nobody else is on it.
        "resources": {
            "requests": requests,
            "limits": {name: value for name, value in requests.items() if name != "cpu"},
        },
    }
    if options.image_pull_policy:
        container["imagePullPolicy"] = options.image_pull_policy
    if options.buckets:
        container["volumeMounts"] = buckets.volume_mounts(options.buckets)
    return container


def _environment(options: KubeRayOptions, ours: dict[str, str]) -> list[dict[str, Any]]:
    plain = [{"name": name, "value": value} for name, value in (ours | dict(options.env)).items()]
    return [*plain, *(_secret(name, place) for name, place in options.secret_env.items())]


def _secret(name: str, place: str) -> dict[str, Any]:
    secret, _, key = place.partition("/")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _template(request: RayRequest, options: KubeRayOptions, container: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [container]}
    if options.service_account:
        spec["serviceAccountName"] = options.service_account
    if options.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secrets]
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    if options.buckets:
        spec["volumes"] = buckets.volumes(options.buckets)
    metadata: dict[str, Any] = {"labels": {**options.labels, **naming.labels(request)}}
    annotations = {**options.annotations, **buckets.mount_annotations(options.buckets)}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": spec}
