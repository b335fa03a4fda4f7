"""The kinds that the server knows: core ones, RBAC, Kueue's workloads and whatever CRDs it is given."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CRD_GROUP = "apiextensions.k8s.io"


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of object.

    :param versions: served versions, the stored one first.
    :param schemas: ``openAPIV3Schema`` by version; a kind without one is taken as it comes.
    :param is_custom: it comes from a CRD.
    """

    group: str
    versions: tuple[str, ...]
    kind: str
    plural: str
    namespaced: bool = True
    has_status: bool = True
    is_custom: bool = False
    schemas: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        return self.group, self.plural

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version


CRDS = Kind(CRD_GROUP, ("v1",), "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
NAMESPACES = Kind("", ("v1",), "Namespace", "namespaces", namespaced=False)
PODS = Kind("", ("v1",), "Pod", "pods")
SERVICES = Kind("", ("v1",), "Service", "services")
SECRETS = Kind("", ("v1",), "Secret", "secrets", has_status=False)
EVENTS = Kind("", ("v1",), "Event", "events", has_status=False)
QUOTAS = Kind("", ("v1",), "ResourceQuota", "resourcequotas")
ACCOUNTS = Kind("", ("v1",), "ServiceAccount", "serviceaccounts", has_status=False)
_RBAC = "rbac.authorization.k8s.io"
ROLES = Kind(_RBAC, ("v1",), "Role", "roles", has_status=False)
BINDINGS = Kind(_RBAC, ("v1",), "RoleBinding", "rolebindings", has_status=False)
CLUSTER_ROLES = Kind(_RBAC, ("v1",), "ClusterRole", "clusterroles", namespaced=False, has_status=False)
CLUSTER_BINDINGS = Kind(_RBAC, ("v1",), "ClusterRoleBinding", "clusterrolebindings", namespaced=False, has_status=False)
NODES = Kind("", ("v1",), "Node", "nodes", namespaced=False)

CORE = (
    *(CRDS, NAMESPACES, NODES, PODS, SERVICES, SECRETS, EVENTS, QUOTAS, ACCOUNTS),
    *(ROLES, BINDINGS, CLUSTER_ROLES, CLUSTER_BINDINGS),
    Kind("", ("v1",), "ConfigMap", "configmaps", has_status=False),
    Kind("batch", ("v1",), "Job", "jobs"),
    Kind("scheduling.k8s.io", ("v1",), "PriorityClass", "priorityclasses", namespaced=False, has_status=False),
)
_KUEUE = ("v1beta2", "v1beta1")
KUEUE = (
    Kind("kueue.x-k8s.io", _KUEUE, "Workload", "workloads", is_custom=True),
    Kind("kueue.x-k8s.io", _KUEUE, "LocalQueue", "localqueues", is_custom=True),
)
_RAY = {"RayCluster": "rayclusters", "RayJob": "rayjobs", "RayService": "rayservices", "RayCronJob": "raycronjobs"}
SCHEMALESS_RAY = tuple(Kind("ray.io", ("v1",), kind, plural, is_custom=True) for kind, plural in _RAY.items())


def crds_folder() -> Path | None:
    """Where KubeRay's CRDs lie: ``$RAYTPU_KUBERAY_CRDS``, or beside this repository; ``None`` where they do not."""
    root = Path(__file__).parents[3]
    folder = Path(os.environ.get("RAYTPU_KUBERAY_CRDS") or root.parent / "shared" / "kuberay-crds" / "v1.7.0")
    return folder if folder.is_dir() else None


@functools.cache
def crd_objects(folder: Path) -> tuple[dict[str, Any], ...]:
    """The CustomResourceDefinitions of *folder*, one a file. Not to be changed: they are shared."""
    texts = [path.read_text() for path in sorted(folder.glob("*.yaml"))]
    return tuple(yaml.load(text, yaml.CSafeLoader) for text in texts)


def from_crd(crd: Mapping[str, Any]) -> Kind:
    spec = crd["spec"]
    served = sorted((each for each in spec["versions"] if each["served"]), key=lambda each: not each["storage"])
    return Kind(
        group=spec["group"],
        versions=tuple(each["name"] for each in served),
        kind=spec["names"]["kind"],
        plural=spec["names"]["plural"],
        namespaced=spec["scope"] == "Namespaced",
        has_status="status" in served[0].get("subresources", {}),
        is_custom=True,
        schemas={each["name"]: each["schema"]["openAPIV3Schema"] for each in served},
    )
