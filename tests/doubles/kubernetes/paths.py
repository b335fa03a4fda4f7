"""A request's path and method in Kubernetes' words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.doubles.kubernetes.watching import is_watch

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True)
class Target:
    """What a request is about."""

    group: str
    version: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def full(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def target(method: str, path: str, query: Mapping[str, str]) -> Target | None:
    """``None`` for a path that is no object's: discovery, or nothing at all."""
    parts = path.strip("/").split("/")
    match parts:
        case ["api", version, *below] if below:
            group = ""
        case ["apis", group, version, *below] if below:
            pass
        case _:
            return None
    namespace = ""
    if below[0] == "namespaces" and len(below) > 2 and below[2] != "status":
        namespace, below = below[1], below[2:]
    resource, name = below[0], below[1] if len(below) > 1 else ""
    subresource = below[2] if len(below) > 2 else ""
    verb = _verb(method, name, subresource, query)
    return Target(group, version, resource, verb, namespace, name, subresource)


def _verb(method: str, name: str, subresource: str, query: Mapping[str, str]) -> str:
    if method in _VERBS:
        return _VERBS[method]
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    if subresource == "proxy" or (name and not is_watch(query)):
        return "get"
    return "watch" if is_watch(query) else "list"
