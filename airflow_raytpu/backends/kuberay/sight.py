"""The objects of one deployment: asked for one by one at first, watched from the moment that somebody waits.

So a task that only submits costs a few requests, and one that waits for a day costs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_raytpu.backends.kuberay import naming, watch
from airflow_raytpu.backends.kuberay.api import (
    EVENTS,
    PODS,
    RAYCLUSTERS,
    RAYJOBS,
    RAYSERVICES,
    WORKLOADS,
    WORKLOADS_V1BETA1,
    KubeApi,
)
from airflow_raytpu.backends.kuberay.resources import Resource
from airflow_raytpu.backends.kuberay.statuses import Seen, cluster_of
from airflow_raytpu.backends.kuberay.watch import INVOLVED, Mark, Rhythm, Store
from airflow_raytpu.model.errors import BackendUnreachable, ForbiddenError, NotInstalledError
from airflow_raytpu.model.request import RayRequest

_OF_CLUSTER = "ray.io/cluster"
_QUEUE = "kueue.x-k8s.io/queue-name"
_STALE_S = 180.0
"""A watch that has heard nothing for so long is not believed; the server is asked itself."""

Body = Mapping[str, Any]


class Sight:
    """What there is of the objects of *deployment* in the namespace of *api*."""

    def __init__(self, api: KubeApi, deployment: str, rhythm: Rhythm | None = None) -> None:
        self._api = api
        self._rhythm = rhythm
        self._ours = f"{naming.DEPLOYMENT}={naming.label_value(deployment)}"
        self._stores: dict[Resource, Store] = {}
        self._marks: dict[str, list[tuple[Store, Mark]]] = {}
        self._kueue: Resource | None = None
        self._kueue_known = False

    async def close(self) -> None:
        stores, self._stores = list(self._stores.values()), {}
        for store in stores:
            await store.close()

    async def get(self, resource: Resource, name: str) -> Body | None:
        """The object; that it is absent is only believed of the server itself.

        :raises BackendUnreachable: no answer.
        """
        store = self._fresh(resource)
        return (store.get(name) if store else None) or await self._api.get(resource, name)

    async def clusters(self) -> list[Body]:
        """Every RayCluster of the deployment."""
        return await self._labelled(RAYCLUSTERS, *self._ours.split("=", 1))

    async def has_children(self, name: str) -> bool:
        """Whether the server still has clusters or pods of what the request *name* made."""
        label = f"{naming.REQUEST}={name}"
        return any([(await self._api.list(resource, labels=label))[0] for resource in (PODS, RAYCLUSTERS)])

    def blind(self) -> str:
        """What cannot be watched, and why; empty where all can. Its absence is no proof then."""
        faults = (store.fault for resource, store in self._stores.items() if resource != RAYSERVICES)
        lasting = (fault for fault in faults if isinstance(fault, ForbiddenError | NotInstalledError))
        return "; ".join(dict.fromkeys(f"not watched: {fault.cause} {fault.lever}".strip() for fault in lasting))

    async def of(self, request: RayRequest, own: Resource | None) -> Seen:
        """What there is of *request* and of its cluster.

        :param own: the kind of its own object; ``None`` for a job of a shared cluster.
        """
        self._mark(request, own)
        top = await self.get(own, request.name) if own else None
        cluster = await self._cluster(request, own, top)
        name = cluster["metadata"]["name"] if cluster else ""
        pods = await self._pods(cluster) if cluster else []
        return Seen(
            job=top if own == RAYJOBS else None,
            service=top if own == RAYSERVICES else None,
            cluster=cluster,
            pods=pods,
            events=self._events([request.name, name, *(pod["metadata"]["name"] for pod in pods)]),
            workloads=await self._workloads(top or cluster),
        )

    async def changed(self, request: RayRequest, within_s: float) -> None:
        """Until something that :meth:`of` read last differs, *within_s* seconds at most. Watches from now on."""
        marks = self._marks.get(request.name)
        if marks is None:
            self._watch(RAYCLUSTERS, RAYJOBS, RAYSERVICES, PODS, labels=self._ours)
            self._watch(EVENTS)
            marks = []
        waiting = [asyncio.ensure_future(store.changed(mark)) for store, mark in marks]
        pause = asyncio.ensure_future(asyncio.sleep(within_s))
        try:
            await asyncio.wait({pause, *waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (pause, *waiting):
                each.cancel()

    def made(self, resource: Resource, item: Body) -> None:
        """Take notice of an answer to a write, ahead of the watch."""
        if store := self._stores.get(resource):
            store.put(dict(item))

    async def _cluster(self, request: RayRequest, own: Resource | None, top: Body | None) -> Body | None:
        if own == RAYCLUSTERS:
            return top
        name = (cluster_of(top) if top else "") if own else request.cluster_name
        return await self.get(RAYCLUSTERS, name) if name else None

    async def _pods(self, cluster: Body) -> list[Body]:
        meta = cluster["metadata"]
        if naming.REQUEST in (meta.get("labels") or {}):
            return await self._labelled(PODS, _OF_CLUSTER, meta["name"])
        # Pods of somebody else's cluster carry no label that is watched.
        return list((await self._api.list(PODS, labels=f"{_OF_CLUSTER}={meta['name']}"))[0])

    async def _labelled(self, resource: Resource, label: str, value: str) -> list[Body]:
        store = self._fresh(resource)
        if store:
            return list(store.of(label, value))
        return list((await self._api.list(resource, labels=f"{label}={value}"))[0])

    def _events(self, names: Sequence[str]) -> list[Body]:
        """Only of a watch: they explain a wait, and whoever does not wait needs no explanation."""
        store = self._fresh(EVENTS, though_faulty=True)
        return [event for name in names if name for event in store.of(INVOLVED, name)] if store else []

    async def _workloads(self, queued: Body | None) -> list[Body]:
        if not queued or _QUEUE not in (queued["metadata"].get("labels") or {}):
            return []
        kueue = await self._workload_kind() if EVENTS in self._stores else None
        if kueue is None:
            return []
        self._watch(kueue)
        store = self._fresh(kueue, though_faulty=True)
        return list(store.items()) if store else []

    async def _workload_kind(self) -> Resource | None:
        """As this server has it; ``None`` without Kueue, where there is nothing to watch. Asked once."""
        if not self._kueue_known:
            try:
                versions = (await self._api.crds(WORKLOADS.group)).get(WORKLOADS.plural, ())
            except BackendUnreachable:
                return None
            found = (each for each in (WORKLOADS, WORKLOADS_V1BETA1) if each.version in versions)
            self._kueue, self._kueue_known = next(found, None), True
        return self._kueue

    def _watch(self, *resources: Resource, labels: str = "") -> None:
        for resource in resources:
            if resource not in self._stores:
                self._stores[resource] = watch.shared(self._api, resource, labels, self._rhythm)

    def _fresh(self, resource: Resource, *, though_faulty: bool = False) -> Store | None:
        """Its watch, where that is believed.

        :param though_faulty: what it last showed is better than nothing, for nobody asks the server itself.
        """
        store = self._stores.get(resource)
        if store is None or store.age >= _STALE_S or not (though_faulty or store.fault is None):
            return None
        return store

    def _mark(self, request: RayRequest, own: Resource | None) -> None:
        if not self._stores:
            return
        keys = [(RAYCLUSTERS, "", request.cluster_name), (PODS, _OF_CLUSTER, request.cluster_name)]
        if own:
            keys = [(own, "", request.name), (RAYCLUSTERS, naming.REQUEST, request.name)]
            keys += [(PODS, naming.REQUEST, request.name), (EVENTS, INVOLVED, request.name)]
        marks = ((self._stores[resource], (label, value)) for resource, label, value in keys)
        self._marks[request.name] = [(store, store.mark(key)) for store, key in marks]
