"""What the KubeRay backend asks of Kubernetes, in the words of RBAC. ``docs/kubernetes/role.yaml`` grants just this."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_raytpu.backends.kuberay.resources import (
    EVENTS,
    NODES,
    PODS,
    RAYCLUSTERS,
    RAYJOBS,
    RAYSERVICES,
    SECRETS,
    SERVICES,
    WORKLOADS,
    Resource,
)

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
QUEUES = Resource(WORKLOADS.group, WORKLOADS.version, "localqueues", "LocalQueue")
WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)


@dataclass(frozen=True, slots=True)
class Need:
    """One right."""

    verb: str
    resource: Resource
    subresource: str = ""

    @property
    def what(self) -> str:
        """As RBAC rules and messages name it: ``rayjobs.ray.io``, ``services/proxy``."""
        return f"{self.resource.full}/{self.subresource}" if self.subresource else self.resource.full

    def __str__(self) -> str:
        return f"{self.verb} {self.what}"


def _needs(verbs: str, *resources: Resource, subresource: str = "") -> tuple[Need, ...]:
    return tuple(Need(verb, resource, subresource) for resource in resources for verb in verbs.split())


PROXY = _needs("get create update delete", SERVICES, subresource="proxy")
"""Only where Ray is reached through the API server."""

KUEUE = _needs("get list watch", WORKLOADS)
"""Only with a queue."""

NEEDED = (
    *_needs("create get list watch patch delete", RAYCLUSTERS, RAYJOBS, RAYSERVICES),
    *_needs("get list watch", PODS, EVENTS),
    *_needs("get", SECRETS),
    *PROXY,
    *KUEUE,
)
"""All that the backend and its watches ask for."""

LOOKED_AT = (
    *_needs("list", NODES, WEBHOOKS),
    *_needs("get", NAMESPACES, ACCOUNTS, QUEUES, DEFINITIONS),
)
"""What the doctor alone looks at, where it may."""
