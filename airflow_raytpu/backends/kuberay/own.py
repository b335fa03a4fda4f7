"""Objects that requests make for themselves: created once, adopted by their owner only, removed by their uid."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from airflow_raytpu.backends import outbox, rayjobs
from airflow_raytpu.backends.kuberay import life, naming, statuses
from airflow_raytpu.backends.kuberay.api import RAYCLUSTERS, RAYJOBS, RAYSERVICES, Conflict, Exists
from airflow_raytpu.backends.kuberay.growth import grown
from airflow_raytpu.backends.kuberay.making import serving
from airflow_raytpu.backends.kuberay.manifest import manifest
from airflow_raytpu.backends.kuberay.resources import Resource
from airflow_raytpu.backends.kuberay.site import Site
from airflow_raytpu.model.errors import BackendUnreachable, RayTpuError
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.request import Kind, RayRequest

_GONE_POLL_S = 1.0
_STOP_S = 40.0
_GIVE_BACK_TRIES = 5

_RESOURCES = dict.fromkeys(Kind, RAYJOBS) | {Kind.CLUSTER: RAYCLUSTERS, Kind.SERVE: RAYSERVICES}

Body = Mapping[str, Any]

log = logging.getLogger(__name__)


def resource_of(request: RayRequest) -> Resource | None:
    """The kind of the object that *request* makes; ``None`` where it is a job of a cluster that is there."""
    return _RESOURCES[request.kind] if request.owns_cluster else None


class OwnObjects:
    """The RayCluster, RayJob or RayService of each request that has one."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def ensure(self, request: RayRequest) -> bool:
        """See :meth:`~airflow_raytpu.backends.base.Backend.ensure`."""
        resource = _RESOURCES[request.kind]
        found = await self._site.sight.get(resource, request.name)
        if found is None:
            return await self._create(resource, request)
        _refuse_foreign(resource, found, request)
        if found["metadata"].get("deletionTimestamp"):
            return False  # what is on its way out must be gone first: then its name is free
        if request.shared:
            await self._fit(found, request)
        if _is_job(request) and not await outbox.submitted(request):
            # The answer to its creation was lost, or its creator was.
            await outbox.note_submitted(request, found["metadata"]["uid"])
        return True

    async def stop(self, request: RayRequest) -> None:
        await self.remove(request)

    async def remove(self, request: RayRequest) -> str:
        """Ask for the end of what *request* made; its uid, empty where there is nothing."""
        resource = _RESOURCES[request.kind]
        found = await self._site.api.get(resource, request.name)
        if found is None:
            return ""
        _refuse_foreign(resource, found, request)
        uid = str(found["metadata"]["uid"])
        if resource is RAYJOBS and statuses.is_running(found):
            await self._stop_job(found, request)
        await self._site.api.delete(resource, request.name, uid)
        return uid

    async def delete(self, request: RayRequest) -> None:
        """:meth:`remove`, and return when all of it is gone."""
        uid = await self.remove(request)
        while True:
            if not await self._remains(request, uid):
                return
            await asyncio.sleep(_GONE_POLL_S)

    async def give_back(self, request: RayRequest) -> bool:
        """Remove what others may share where its creator gives it up before it ever served; whether it is gone."""
        resource = _RESOURCES[request.kind]
        for _ in range(_GIVE_BACK_TRIES):
            found = await self._site.api.get(resource, request.name)
            if found is None:
                return True
            if not _is_wasted(found, request):
                return False
            meta = found["metadata"]
            try:
                # As it was just seen: it may have become ready, or have got another sign of life.
                await self._site.api.delete(resource, request.name, meta["uid"], meta["resourceVersion"])
            except Conflict:
                continue
            log.info("%s %s has never served and is given back.", resource.kind, request.name)
            return True
        raise BackendUnreachable(f"{resource.kind} {request.name} changes too often to be given back.")

    async def _create(self, resource: Resource, request: RayRequest) -> bool:
        if _is_job(request):
            if await outbox.submitted(request):
                return True  # accepted once: that it is gone now is for the observation to say
            await outbox.write_request(request)
        body = manifest(request, KubeRayOptions.from_dict(request.options), self._site.now())
        try:
            made = await self._site.api.create(resource, body)
        except Exists as error:
            log.debug("%s", error.cause)
            return False  # whose it is, the next look tells
        self._site.sight.made(resource, made)
        if _is_job(request):
            await outbox.note_submitted(request, made["metadata"]["uid"])
        return True

    async def _fit(self, found: Body, request: RayRequest) -> None:
        """Let what is shared live longer, and a cluster grow, where that is all it lacks.

        :raises RequestError: it is of another slice.
        """
        there = naming.note_of(found, naming.SLICE)
        if request.kind is Kind.SERVE:
            if there != request.slice:
                raise rayjobs.other_service(request.name, there, request.slice)
            return  # a service has no time to live
        patch = grown(found, request.slice)
        if patch is None:
            raise rayjobs.misfit(request.name, there, request.slice)
        if more := life.longer(found, request.ttl_s):
            version, notes = found["metadata"]["resourceVersion"], patch.get("metadata", {}).get("annotations", {})
            patch = {**patch, "metadata": {"resourceVersion": version, "annotations": {**notes, **more}}}
        if patch and (changed := await self._site.api.patch(RAYCLUSTERS, request.name, patch)) is not None:
            self._site.sight.made(RAYCLUSTERS, changed)

    async def _stop_job(self, job: Body, request: RayRequest) -> None:
        """Let the job end in good order; its cluster goes next in any case, so no trouble here may hold that up."""
        try:
            async with asyncio.timeout(_STOP_S):
                cluster = await self._site.sight.get(RAYCLUSTERS, statuses.cluster_of(job))
                if cluster is not None:
                    await rayjobs.stop(await self._site.rays.of(cluster), request)
        except (RayTpuError, TimeoutError) as error:
            log.warning("%s is deleted without having been stopped: %s", request.name, error)

    async def _remains(self, request: RayRequest, uid: str) -> bool:
        """The object is still there, or a cluster or pods of it, which hold the hosts."""
        found = await self._site.api.get(_RESOURCES[request.kind], request.name)
        if found is not None and found["metadata"]["uid"] == uid:
            return True
        return await self._site.sight.has_children(request.name)


def _refuse_foreign(resource: Resource, found: Body, request: RayRequest) -> None:
    rayjobs.refuse_foreign(f"{resource.kind} {request.name}", naming.owner_of(found), request)


def _is_job(request: RayRequest) -> bool:
    """Whether its object carries out a job of the request's own, which an outbox tells of."""
    return request.kind.is_job and not request.shared


def _is_wasted(found: Body, request: RayRequest) -> bool:
    """*request*, which shares it, made it, and it has never served anybody."""
    ours = naming.owner_of(found) == request.identity.owner()
    made = naming.note_of(found, naming.CREATOR) == request.storage
    served = serving.is_proven(found) if request.kind is Kind.SERVE else statuses.was_ready(found)
    return ours and made and not served
