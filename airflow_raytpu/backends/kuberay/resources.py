"""The kinds of object that are asked for, and where the API server has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

Body = Mapping[str, Any]
"""An object in the API's own JSON form."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind.

    :param group: its API group; empty for the core group.
    :param plural: its name in paths and in RBAC rules.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full(self) -> str:
        """The name that messages use, such as ``rayjobs.ray.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str, name: str = "") -> str:
        """Its path on the API server: one object's, or without *name* the collection's."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced:
            parts += ["namespaces", namespace]
        parts += [self.plural, name] if name else [self.plural]
        return "/" + "/".join(quote(part, safe="") for part in parts)


RAYCLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
RAYJOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
RAYSERVICES = Resource("ray.io", "v1", "rayservices", "RayService")
PODS = Resource("", "v1", "pods", "Pod")
EVENTS = Resource("", "v1", "events", "Event")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICES = Resource("", "v1", "services", "Service")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
WORKLOADS_V1BETA1 = Resource("kueue.x-k8s.io", "v1beta1", "workloads", "Workload")
