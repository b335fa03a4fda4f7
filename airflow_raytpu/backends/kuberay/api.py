"""The sole Kubernetes client: asynchronous, one namespace, plain JSON both ways.

What may pass by itself (401 once, 408, 429, 5xx, a lost connection, no answer in time) is tried again within a
deadline, as ``Retry-After`` says, and then is :class:`~airflow_raytpu.model.errors.BackendUnreachable`. So a write may
have been done although its answer was lost: creating again says :class:`Exists`, deleting again finds nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast
from urllib.parse import quote

import aiohttp

from airflow_raytpu.backends.kuberay.connection import JSON, MERGE_PATCH, Connection, Pace, read
from airflow_raytpu.backends.kuberay.credentials import Access
from airflow_raytpu.backends.kuberay.door import Door
from airflow_raytpu.backends.kuberay.refusals import (
    Answer,
    Asked,
    Conflict,
    Exists,
    missing_name,
    other_uid,
    refusal,
)
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
    WORKLOADS_V1BETA1,
    Body,
    Resource,
)
from airflow_raytpu.model.errors import BackendUnreachable

__all__ = [
    "EVENTS",
    "NODES",
    "PODS",
    "RAYCLUSTERS",
    "RAYJOBS",
    "RAYSERVICES",
    "SECRETS",
    "SERVICES",
    "WORKLOADS",
    "WORKLOADS_V1BETA1",
    "Access",
    "Conflict",
    "Door",
    "Exists",
    "KubeApi",
    "Pace",
    "Resource",
]

Objects = list[dict[str, Any]]

_MANAGER = "airflow-raytpu"
_PAGE = 250
"""Objects; a page of them is read in some 20 ms, for which everything else in the process waits."""

_STARTS = 5
_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
_VERSION = Resource("", "version", "version", "Version", namespaced=False)
_GROUPS = Resource("", "apis", "groups", "APIGroup", namespaced=False)


class KubeApi:
    """One namespace of one API server.

    :param access: how to reach it; clients of equal ``access.key`` share their connections.
    """

    def __init__(self, access: Access, namespace: str, pace: Pace | None = None) -> None:
        self.access = access
        self.namespace = namespace
        self._pace = pace or Pace()
        self._connection = Connection(access, self._pace)

    def again(self) -> KubeApi:
        """Another client of the same place, to be closed on its own; both share their connections."""
        return KubeApi(self.access, self.namespace, self._pace)

    async def close(self) -> None:
        """Idempotent."""
        await self._connection.close()

    async def create(self, resource: Resource, body: Body) -> dict[str, Any]:
        """Create what *body* says, which must hold a name; fields that the API does not know are refused.

        :raises Exists: the name is taken, maybe by an earlier try of this very call.
        :raises ManifestError: the API server, or a webhook, refuses the object; says the fields.
        :raises ForbiddenError: RBAC, a policy or a quota.
        :raises NotInstalledError: there is no such kind or namespace.
        """
        asked = self._asked("create", resource, str(body["metadata"]["name"]))
        query = {"fieldValidation": "Strict", "fieldManager": _MANAGER}
        return _object(asked, await self._ask(asked, "POST", resource.path(self.namespace), query, body))

    async def get(self, resource: Resource, name: str) -> dict[str, Any] | None:
        """The object as it is now; ``None`` where there is none of that name."""
        if not name:
            return None  # its address would be the list's
        return await self._one(self._asked("get", resource, name), "GET")

    async def list(self, resource: Resource, labels: str = "", fields: str = "") -> tuple[Objects, str]:
        """All that match the selectors, as they were at one moment, and its resourceVersion."""
        asked = self._asked("list", resource)
        for _ in range(_STARTS):
            found = await self._pages(asked, labels, fields)
            if found is not None:
                return found
        raise BackendUnreachable(f"Each of {_STARTS} times the API server lost its place: {asked}.")

    async def patch(self, resource: Resource, name: str, body: Body) -> dict[str, Any] | None:
        """JSON merge patch; ``None`` where there is no such object.

        :raises Conflict: *body* carries a ``metadata.resourceVersion`` and the object has another by now.
        """
        asked = self._asked("patch", resource, name, guarded="resourceVersion" in (body.get("metadata") or {}))
        return await self._one(asked, "PATCH", {"fieldValidation": "Strict", "fieldManager": _MANAGER}, body)

    async def delete(self, resource: Resource, name: str, uid: str, version: str = "") -> None:
        """Ask for the end of the object with *uid*; it may stay for a while. Gone, or another by now, is no error.

        :param version: its resourceVersion, where it must not have changed since it was read.
        :raises Conflict: it has.
        """
        asked = self._asked("delete", resource, name, guarded=bool(version))
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, **({"resourceVersion": version} if version else {})},
            "propagationPolicy": "Background",
        }
        answer = await self._ask(asked, "DELETE", resource.path(self.namespace, name), {}, options)
        if answer.status >= 400 and not missing_name(asked, answer) and not other_uid(answer):
            raise refusal(asked, answer)

    async def may(self, verb: str, resource: Resource, subresource: str = "") -> bool:
        """Whether RBAC lets us; asks the API server, and changes nothing."""
        attributes = {"verb": verb, "group": resource.group, "resource": resource.plural}
        if resource.namespaced:
            attributes["namespace"] = self.namespace
        if subresource:
            attributes["subresource"] = subresource
        body = {
            "apiVersion": _REVIEWS.api_version,
            "kind": _REVIEWS.kind,
            "spec": {"resourceAttributes": attributes},
        }
        asked = self._asked("create", _REVIEWS)
        review = _object(asked, await self._ask(asked, "POST", _REVIEWS.path(""), {}, body))
        return bool((review.get("status") or {}).get("allowed"))

    async def server_version(self) -> str:
        """Such as ``v1.36.0``, or GKE's ``v1.35.3-gke.1082000``."""
        asked = self._asked("get", _VERSION)
        return str(_object(asked, await self._ask(asked, "GET", "/version", {})).get("gitVersion", ""))

    async def crds(self, group: str = "ray.io") -> dict[str, tuple[str, ...]]:
        """The kinds that *group* serves, each with its versions, the preferred first; empty where it has none.

        By discovery, which every user may read; listing the definitions would need a cluster role.
        """
        asked = self._asked("get", _GROUPS)
        answer = await self._ask(asked, "GET", f"/apis/{quote(group, safe='')}", {})
        if answer.status == 404:
            return {}
        found = _object(asked, answer)
        first = (found.get("preferredVersion") or {}).get("version")
        versions = [str(version["version"]) for version in found.get("versions") or ()]
        kinds: dict[str, tuple[str, ...]] = {}
        for version in sorted(versions, key=lambda version: version != first):
            listed = _object(asked, await self._ask(asked, "GET", f"/apis/{quote(group, safe='')}/{version}", {}))
            for kind in listed.get("resources") or ():
                if "/" not in kind["name"]:
                    kinds[kind["name"]] = (*kinds.get(kind["name"], ()), version)
        return kinds

    async def nodes(self, labels: str = "") -> Objects:
        """The cluster's machines."""
        return (await self.list(NODES, labels))[0]

    async def proxy(self, service: str, port: int | str) -> Door:
        """The way to a service of this namespace through the API server.

        RBAC: ``get``, ``create``, ``update`` and ``delete`` on ``services/proxy``.
        """
        path = f"{SERVICES.path(self.namespace)}/{quote(f'{service}:{port}', safe=':')}/proxy"
        return Door((await self._connection.loaded()).host + path, self._connection)

    @contextlib.asynccontextmanager
    async def watching(
        self, resource: Resource, query: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One watch's answer, open. Silence for *silence_s* is a ``TimeoutError`` while reading.

        :raises RayTpuError: the server refuses to watch. What passes is tried again by nobody here.
        """
        asked = self._asked("watch", resource)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._pace.once, sock_read=silence_s)
        path, query = resource.path(self.namespace), {"watch": "true", **query}
        async with self._connection.open("GET", path, timeout, params=query) as answer:
            if answer.status != 200:
                raise refusal(asked, await read(answer))
            yield answer

    async def _one(
        self, asked: Asked, method: str, query: Mapping[str, str] | None = None, body: Body | None = None
    ) -> dict[str, Any] | None:
        answer = await self._ask(asked, method, asked.resource.path(self.namespace, asked.name), query or {}, body)
        return None if missing_name(asked, answer) else _object(asked, answer)

    async def _pages(self, asked: Asked, labels: str, fields: str) -> tuple[Objects, str] | None:
        """``None`` where the server has forgotten the moment of the first page."""
        query = {"limit": str(_PAGE), "labelSelector": labels, "fieldSelector": fields}
        query = {name: value for name, value in query.items() if value}
        items: Objects = []
        while True:
            answer = await self._ask(asked, "GET", asked.resource.path(self.namespace), query)
            if answer.status == 410:
                return None
            page = _object(asked, answer)
            items += page.get("items") or ()
            meta = page.get("metadata") or {}
            if not meta.get("continue"):
                return items, str(meta.get("resourceVersion", ""))
            query["continue"] = str(meta["continue"])

    async def _ask(
        self, asked: Asked, method: str, path: str, query: Mapping[str, str], body: Body | None = None
    ) -> Answer:
        if body is None:
            return await self._connection.ask(asked, method, path, query)
        headers = {"Content-Type": MERGE_PATCH if method == "PATCH" else JSON}
        return await self._connection.ask(asked, method, path, query, data=json.dumps(body).encode(), headers=headers)

    def _asked(self, verb: str, resource: Resource, name: str = "", guarded: bool = False) -> Asked:
        return Asked(verb=verb, resource=resource, namespace=self.namespace, name=name, guarded=guarded)


def _object(asked: Asked, answer: Answer) -> dict[str, Any]:
    if answer.status >= 300:
        raise refusal(asked, answer)
    try:
        return cast("dict[str, Any]", json.loads(answer.text))
    except ValueError as error:
        raise BackendUnreachable(
            f"The answer to {asked} is not Kubernetes': {answer.message[:200]}", "Look what listens there."
        ) from error
