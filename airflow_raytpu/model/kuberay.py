"""What a cluster on Kubernetes is made with beyond its slices: one frozen value that survives JSON."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from airflow_raytpu.model import reading
from airflow_raytpu.model.kuberay_rules import check_options
from airflow_raytpu.model.supply import BucketMount, CpuGroup, Provisioning, Resources

__all__ = ["BucketMount", "CpuGroup", "KubeRayOptions", "Provisioning", "Resources"]

_HEAD = Resources(cpu="4", memory="16Gi")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeRayOptions:
    """How a RayCluster, RayJob or RayService of ours is made.

    :param image: with Ray, JAX for TPU and what the author's code imports; nothing of Airflow.
    :param ray_version: what the image holds; KubeRay picks probes and features by it.
    :param service_account: Kubernetes service account of head and workers (Workload Identity).
    :param image_pull_policy: ``Always``, ``IfNotPresent`` or ``Never``; Kubernetes' default where empty.
    :param reservation: name of the TPU reservation, for ``provisioning="reservation"``.
    :param run_limit_s: seconds after which flex-start or queued nodes are taken away.
    :param grace_s: seconds that a worker is given to end (``terminationGracePeriodSeconds``).
    :param queue: Kueue's local queue, with ``queue_priority`` one of its WorkloadPriorityClasses.
    :param priority_class: ``priorityClassName`` of the pods.
    :param compute_class: GKE ComputeClass that makes the nodes.
    :param min_slices: smallest number of slices that autoscaling keeps; ``max_slices`` the largest. The request's own
        number where left out.
    :param idle_s: seconds after which autoscaling gives an idle slice back.
    :param elastic: annotate for Kueue's elastic jobs, without which it takes no autoscaling cluster.
    :param worker: of one TPU host; by its chips where ``None``.
    :param env: variables of head and workers; ``secret_env`` takes them from ``"secret/key"``.
    :param privileged: workers may touch the TPU devices by themselves, as v6e 16x16 needs.
    :param pod_template: merged over the pod templates of head and workers.
    :param manifest: merged over the whole object.
    :param whole: a RayCluster or RayJob to use instead.
    :raises RequestError: a value that cannot be. What goes with what is for :func:`check_together` to say, once the
        connection's options and the task's are one.
    """

    namespace: str = "default"
    image: str = ""
    ray_version: str = "2.60.0"
    service_account: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    image_pull_policy: str = ""
    provisioning: Provisioning = Provisioning.ON_DEMAND
    reservation: str = ""
    reservation_project: str = ""
    reservation_block: str = ""
    run_limit_s: float | None = None
    grace_s: float | None = None
    queue: str = ""
    queue_priority: str = ""
    priority_class: str = ""
    compute_class: str = ""
    autoscaling: bool = False
    min_slices: int | None = None
    max_slices: int | None = None
    idle_s: float | None = None
    elastic: bool = False
    head: Resources = _HEAD
    worker: Resources | None = None
    cpu_groups: tuple[CpuGroup, ...] = ()
    buckets: tuple[BucketMount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    privileged: bool = False
    pod_template: Mapping[str, Any] | None = None
    manifest: Mapping[str, Any] | None = None
    whole: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_options(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; what is left at its default is left out."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value != getattr(_DEFAULTS, each.name):
                found[each.name] = _plain(value)
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KubeRayOptions:
        """:raises RequestError: an unknown key, a value of the wrong kind, or a contradiction."""
        return cls(
            **{reading.known(name, list(_KINDS), "KubeRayOptions"): _read(name, each) for name, each in data.items()}
        )

    @classmethod
    def over(cls, base: Mapping[str, Any], *overrides: Mapping[str, Any]) -> KubeRayOptions:
        """The options of *base* with each of *overrides* over it, key by key: the last one that states a key wins.

        :raises RequestError: as :meth:`from_dict`.
        """
        merged = dict(base)
        for override in overrides:
            merged |= override
        return cls.from_dict(merged)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Resources | CpuGroup | BucketMount):
        return asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _read(name: str, value: Any) -> Any:
    match name:
        case "provisioning":
            return reading.member(name, Provisioning, value)
        case "head":
            return reading.record(name, Resources, value)
        case "worker":
            return None if value is None else reading.record(name, Resources, value)
        case "cpu_groups":
            return reading.records(name, CpuGroup, value)
        case "buckets":
            return reading.records(name, BucketMount, value)
        case "image_pull_secrets":
            return reading.plains(name, "str", value)
        case "tolerations":
            return reading.plains(name, "Mapping", value)
    return reading.plain(name, _KINDS[name], value)


_DEFAULTS = KubeRayOptions()
_KINDS = reading.kinds_of(KubeRayOptions)
