"""Objects in a namespace that nobody looks after any more: which they are, and their end.

Ours are told by label, by an owner annotation that names the object itself, and by having no other owner. A cluster
under a RayJob or RayService goes with that one.
"""

from __future__ import annotations

import asyncio
import time

from airflow_raytpu.backends.kuberay import life, naming, statuses
from airflow_raytpu.backends.kuberay.api import PODS, RAYCLUSTERS, RAYJOBS, RAYSERVICES, KubeApi, Resource
from airflow_raytpu.backends.kuberay.making.serving import is_proven
from airflow_raytpu.backends.kuberay.observing import jobs, services
from airflow_raytpu.backends.kuberay.observing.reading import (
    Object,
    belongs,
    created,
    going,
    moment,
    name,
    parts,
    text,
    uid,
)
from airflow_raytpu.model.errors import ClusterError
from airflow_raytpu.model.identity import CLUSTER_NAME_LIMIT, JOB_NAME_LIMIT, Identity
from airflow_raytpu.model.orphans import Orphan, is_silent

_KINDS = (RAYJOBS, RAYSERVICES, RAYCLUSTERS)
_GONE_POLL_S, _GONE_WITHIN_S = 1.0, 600.0


async def find(api: KubeApi, deployment: str, older_than_s: float) -> list[Orphan]:
    """See :meth:`~airflow_raytpu.backends.base.Backend.orphans`."""
    ours = f"{naming.DEPLOYMENT}={naming.label_value(deployment)},{naming.MANAGED_BY}={naming.MANAGER}"
    listed = await asyncio.gather(*(api.list(resource, ours) for resource in _KINDS))
    items = {resource: found for resource, (found, _) in zip(_KINDS, listed, strict=True)}
    clusters = {name(each): each for each in items[RAYCLUSTERS]}
    now = time.time()
    found = (
        judged(resource, item, clusters.get(statuses.cluster_of(item)), deployment, now, older_than_s)
        for resource in _KINDS
        for item in items[resource]
    )
    return [each for each in found if each is not None]


async def end(api: KubeApi, orphan: Orphan) -> bool:
    """See :meth:`~airflow_raytpu.backends.base.Backend.reap`."""
    resource = next(each for each in _KINDS if each.kind == orphan.kind)
    item = await api.get(resource, orphan.name)
    if item is None or uid(item) != orphan.uid:
        return True
    child = await api.get(RAYCLUSTERS, under) if (under := statuses.cluster_of(item)) else None
    if owner_of(resource, item, orphan.owner.deployment) != orphan.owner or last_sign(item, child) > orphan.last_sign:
        return False
    # A request of the same name may be made again meanwhile: only the pods of now are waited for.
    pods = {uid(pod) for pod in await _pods(api, orphan.name)}
    await api.delete(resource, orphan.name, orphan.uid)
    try:
        async with asyncio.timeout(_GONE_WITHIN_S):
            await _until_gone(api, resource, orphan, pods)
    except TimeoutError as error:
        raise ClusterError(
            f"{orphan.kind} {orphan.name} was deleted {_GONE_WITHIN_S:.0f} s ago and is still there.",
            "See its finalizers, and whether KubeRay's operator runs.",
        ) from error
    return True


def judged(
    resource: Resource, item: Object, child: Object | None, deployment: str, now: float, older_than_s: float
) -> Orphan | None:
    """*item* where nobody looks after it. Pure.

    :param child: the cluster under it.
    :param now: seconds since the epoch.
    """
    owner = owner_of(resource, item, deployment)
    if owner is None or going(item):
        return None
    over, ttl_s, seen_at = _over(resource, item, now), life.ttl_s(item), last_sign(item, child)
    # One without a time to live is given no signs of life either. What has proven good serves on without them.
    if not over and (ttl_s <= 0 or (resource is RAYSERVICES and is_proven(item))):
        return None
    if not is_silent(seen_at, now, 0.0 if over else ttl_s, older_than_s):
        return None
    why = over or _state(resource, item)
    return Orphan(kind=resource.kind, name=name(item), uid=uid(item), owner=owner, last_sign=seen_at, why=why)


def owner_of(resource: Resource, item: Object, deployment: str) -> Identity | None:
    """Who asked for *item*; ``None`` where that is not *deployment*, or where it belongs to another object.

    An object is named after its owner, so a name that does not follow from the annotation was not made by us.
    """
    owner = Identity.from_owner(naming.owner_of(item))
    if owner is None or owner.deployment != deployment or parts(item, "metadata", "ownerReferences"):
        return None
    limit = CLUSTER_NAME_LIMIT if resource is RAYCLUSTERS else JOB_NAME_LIMIT
    labelled = text(item, "metadata", "labels", naming.REQUEST)
    ours = owner.owner() == naming.owner_of(item) and owner.remote_name(limit) == name(item) == labelled
    return owner if ours else None


def last_sign(item: Object, child: Object | None) -> float:
    """When somebody looked last, or the job ended, in seconds since the epoch.

    Who looks at a job leaves the sign on its cluster, or on the job itself while that has none.
    """
    under = life.last_beat(child) if child is not None and belongs(child, item) else 0.0
    return max(life.last_beat(item), under, created(item), moment(item, "status", "endTime"))


def _over(resource: Resource, item: Object, now: float) -> str:
    """Why nothing more can come of it; empty where it goes on."""
    if resource is RAYJOBS:
        standing = jobs.standing(item)
        return f"ended, {standing.state.value}" if standing.state.ended or standing.fault else ""
    # What is served is meant to outlive its task: a service goes where KubeRay gave it up before it ever served.
    if resource is RAYSERVICES and services.fault(item, now) and not services.is_submitted(item):
        return "never served, given up"
    return ""


def _state(resource: Resource, item: Object) -> str:
    if resource is RAYJOBS:
        return jobs.standing(item).state.value
    if resource is RAYSERVICES:
        return "never proved good"
    return "ready" if statuses.is_ready(item) else "not ready"


async def _until_gone(api: KubeApi, resource: Resource, orphan: Orphan, pods: set[str]) -> None:
    while True:
        if not await _remains(api, resource, orphan, pods):
            return
        await asyncio.sleep(_GONE_POLL_S)


async def _pods(api: KubeApi, request: str) -> list[Object]:
    return list((await api.list(PODS, labels=f"{naming.REQUEST}={request}"))[0])


async def _remains(api: KubeApi, resource: Resource, orphan: Orphan, pods: set[str]) -> bool:
    """The object is still there, or pods of it, which hold the hosts."""
    found = await api.get(resource, orphan.name)
    if found is not None and uid(found) == orphan.uid:
        return True
    return any(uid(pod) in pods for pod in await _pods(api, orphan.name))
