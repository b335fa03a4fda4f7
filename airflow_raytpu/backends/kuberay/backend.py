"""``KubeRayBackend``: requests as RayClusters, RayJobs and RayServices on Kubernetes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from airflow_raytpu.backends import outbox, rayjobs, raylines, rayslices
from airflow_raytpu.backends.base import LogLine
from airflow_raytpu.backends.kuberay import life, naming, statuses
from airflow_raytpu.backends.kuberay.api import (
    RAYCLUSTERS,
    RAYJOBS,
    RAYSERVICES,
    Access,
    Exists,
    KubeApi,
    Pace,
    Resource,
)
from airflow_raytpu.backends.kuberay.growth import grown
from airflow_raytpu.backends.kuberay.manifest import manifest
from airflow_raytpu.backends.kuberay.reach import Reach
from airflow_raytpu.backends.kuberay.sight import Sight
from airflow_raytpu.backends.kuberay.statuses import Seen
from airflow_raytpu.backends.rayapi import RayApi
from airflow_raytpu.model.errors import BackendUnreachable, ClusterError, LostError, PathError, PlaceError
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.slices import SliceCondition, SliceState

_GONE_POLL_S = 1.0
_QUIET_S = 10.0
"""Between two looks while nothing is told of; a job's progress is in storage, which tells of nothing by itself."""

_OWN = dict.fromkeys(Kind, RAYJOBS) | {Kind.CLUSTER: RAYCLUSTERS, Kind.SERVE: RAYSERVICES}

Body = Mapping[str, Any]

log = logging.getLogger(__name__)


class KubeRayBackend:
    """See :class:`~airflow_raytpu.backends.base.Backend`.

    What is there is asked for object by object until somebody waits; from then on it is watched, and looking costs no
    request.

    :param deployment: whose objects are watched and listed.
    """

    name = "kuberay"

    def __init__(
        self,
        access: Access,
        namespace: str,
        deployment: str,
        reach: Reach | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.api = KubeApi(access, namespace, pace)
        self._sight = Sight(self.api, deployment)
        self._reach = reach or Reach()
        self._rays: dict[str, RayApi] = {}
        self._submitted: set[str] = set()

    async def ensure(self, request: RayRequest) -> bool:
        return await (self._ensure_own(request) if request.owns_cluster else self._ensure_job(request))

    async def observe(self, request: RayRequest) -> Observation:
        try:
            observation = await self._look(request)
            # Read after the job's state: the result is written before the job ends, so an ended job's is there.
            if observation.job in {None, JobState.QUEUED}:
                return observation
            progress, outcome = await outbox.read(request)
            if outcome is not None and request.owns_cluster and observation.job is JobState.RUNNING:
                # KubeRay looks every few seconds, and not at all where its operator is down.
                observation = await self._look(request, ask_ray=True)
        except (PlaceError, PathError) as error:
            return Observation.unreachable(error.cause)
        return replace(observation, progress=progress, outcome=outcome)

    async def wait(self, request: RayRequest, pause_s: float) -> None:
        await self._sight.changed(request, within_s=max(pause_s, _QUIET_S))

    async def tail(self, request: RayRequest, offset: int = 0) -> AsyncIterator[LogLine]:
        ray = await self._submitted_to(request)
        if ray is None:
            return
        async with (
            aclosing(ray.follow_logs(request.name, offset)) as chunks,
            aclosing(raylines.lines(chunks, offset)) as lines,
        ):
            async for line in lines:
                yield line

    async def stop(self, request: RayRequest) -> None:
        if request.shared:
            return
        if request.owns_cluster:
            await self._remove(request)
        elif (ray := await self._ray_with(request)) is not None:
            await rayjobs.stop(ray, request)

    async def delete(self, request: RayRequest) -> None:
        if request.shared:
            return
        if not request.owns_cluster:
            await self.stop(request)
            if (ray := await self._ray_with(request)) is not None:
                await ray.delete_job(request.name)
            return
        uid = await self._remove(request)
        while uid:
            if not await self._remains(request, uid):
                return
            await asyncio.sleep(_GONE_POLL_S)

    async def slices(self, cluster_name: str | None = None) -> list[SliceState]:
        if cluster_name is None:
            pictures = await asyncio.gather(*map(self._slices_or_fault, await self._sight.clusters()))
            return [state for picture in pictures for state in picture]
        cluster = await self._sight.get(RAYCLUSTERS, cluster_name)
        if cluster is None:
            raise LostError(f"There is no cluster {cluster_name}.", "Run its cluster task again.")
        await self._beat(cluster)
        return await self._slices(cluster)

    async def close(self) -> None:
        rays, self._rays = list(self._rays.values()), {}
        for ray in rays:
            await ray.close()
        await self._sight.close()
        await self.api.close()

    async def _ensure_own(self, request: RayRequest) -> bool:
        resource = _OWN[request.kind]
        found = await self._sight.get(resource, request.name)
        if found is None:
            return await self._create(resource, request)
        rayjobs.refuse_foreign(f"{resource.kind} {request.name}", naming.owner_of(found), request)
        if request.shared:
            await self._fit(found, request)
        # What is on its way out must be gone first: then its name is free.
        return not found["metadata"].get("deletionTimestamp")

    async def _fit(self, found: Body, request: RayRequest) -> None:
        """Let a shared cluster grow, where that is all it lacks.

        :raises RequestError: it is of another slice.
        """
        patch = grown(found, request.slice)
        if patch is None:
            there = (found["metadata"].get("annotations") or {}).get(naming.SLICE, "")
            raise rayjobs.misfit(request.name, there, request.slice)
        if patch and (changed := await self.api.patch(RAYCLUSTERS, request.name, patch)) is not None:
            self._sight.made(RAYCLUSTERS, changed)

    async def _create(self, resource: Resource, request: RayRequest) -> bool:
        if request.kind.is_job:
            if await outbox.submitted(request):
                return True  # accepted once: that it is gone now is for the observation to say
            await outbox.write_request(request)
        body = manifest(request, KubeRayOptions.from_dict(request.options), time.time())
        try:
            made = await self.api.create(resource, body)
        except Exists as error:
            log.debug("%s", error.cause)
            return False  # whose it is, the next look tells
        self._sight.made(resource, made)
        if request.kind.is_job:
            await outbox.note_submitted(request, made["metadata"]["uid"])
        return True

    async def _ensure_job(self, request: RayRequest) -> bool:
        """A job of a shared cluster."""
        if await self._is_submitted(request):
            return True
        seen = await self._sight.of(request, None)
        if seen.cluster is None or seen.cluster["metadata"].get("deletionTimestamp"):
            raise LostError(f"The shared cluster {request.cluster_name} is gone.", "Run its cluster task again.")
        await self._beat(seen.cluster)
        there = statuses.of_cluster(seen, time.time())
        if there.fault is not None or there.cluster is ClusterState.FAILED:
            cause, lever = (there.fault.cause, there.fault.lever) if there.fault else (there.detail, "")
            raise ClusterError(f"Cluster {request.cluster_name} is of no use: {cause}", lever)
        if there.cluster is not ClusterState.READY:
            return False
        await rayjobs.submit(await self._ray(request.cluster_name), request)
        await outbox.note_submitted(request, seen.cluster["metadata"]["uid"])
        self._submitted.add(request.name)
        return True

    async def _look(self, request: RayRequest, *, ask_ray: bool = False) -> Observation:
        own, now = _OWN[request.kind] if request.owns_cluster else None, time.time()
        seen = await self._sight.of(request, own)
        if seen.cluster is not None:
            await self._beat(seen.cluster)
        if own is None:
            observation = await self._look_at_job(request, seen, now)
        elif own is RAYJOBS and ask_ray and seen.job is not None:
            job = await (await self._ray(statuses.cluster_of(seen.job))).get_job(request.name)
            observation = statuses.of_job(seen, now, job, missed=job is None)
        else:
            observation = statuses.observe(seen, request, now)
        return self._with_link(observation, seen.cluster)

    async def _look_at_job(self, request: RayRequest, seen: Seen, now: float) -> Observation:
        """A job of a shared cluster, as that cluster's Ray says."""
        submitted = await self._is_submitted(request)
        if not submitted or seen.cluster is None or not statuses.is_ready(seen.cluster):
            return statuses.of_job_on_cluster(seen, None, now, submitted=submitted, asked=False)
        job = await (await self._ray(request.cluster_name)).get_job(request.name)
        return statuses.of_job_on_cluster(seen, job, now, submitted=submitted)

    def _with_link(self, observation: Observation, cluster: Body | None) -> Observation:
        if not observation.facts or cluster is None:
            return observation
        link = self._reach.link(self.api.namespace, cluster["metadata"]["name"])
        return replace(observation, facts={**observation.facts, "dashboard": link} if link else observation.facts)

    async def _ray_with(self, request: RayRequest) -> RayApi | None:
        """The Ray of the shared cluster that *request* was submitted to; ``None`` where it never was, or is gone."""
        if not await self._is_submitted(request) or not await self.api.get(RAYCLUSTERS, request.cluster_name):
            return None
        return await self._ray(request.cluster_name)

    async def _remove(self, request: RayRequest) -> str:
        """Ask for the end of what *request* made; its uid, empty where there is nothing."""
        resource = _OWN[request.kind]
        found = await self.api.get(resource, request.name)
        if found is None:
            return ""
        rayjobs.refuse_foreign(f"{resource.kind} {request.name}", naming.owner_of(found), request)
        uid = str(found["metadata"]["uid"])
        if resource is RAYJOBS and statuses.is_running(found):
            await self._stop_job(found, request)
        await self.api.delete(resource, request.name, uid)
        return uid

    async def _stop_job(self, job: Body, request: RayRequest) -> None:
        """Let the job end in good order; its cluster goes next in any case."""
        try:
            await rayjobs.stop(await self._ray(statuses.cluster_of(job)), request)
        except BackendUnreachable as error:
            log.warning("%s is deleted without having been stopped: %s", request.name, error.cause)

    async def _remains(self, request: RayRequest, uid: str) -> bool:
        """The object is still there, or pods of it, which hold the hosts."""
        found = await self.api.get(_OWN[request.kind], request.name)
        if found is not None and found["metadata"]["uid"] == uid:
            return True
        return bool(await self._sight.pods_of_request(request.name))

    async def _slices(self, cluster: Body) -> list[SliceState]:
        name, due = cluster["metadata"]["name"], statuses.slices_due(cluster)
        if not statuses.is_ready(cluster):
            return rayslices.unseen(name, due, SliceCondition.STARTING)
        return rayslices.slices(name, await (await self._ray(name)).listing(), due)

    async def _slices_or_fault(self, cluster: Body) -> list[SliceState]:
        try:
            return await self._slices(cluster)
        except PlaceError:
            name, due = cluster["metadata"]["name"], statuses.slices_due(cluster)
            return rayslices.unseen(name, due, SliceCondition.BROKEN, "its Ray does not answer")

    async def _beat(self, cluster: Body) -> None:
        """A sign of life on a cluster of ours, a few times in its time to live however many look at it."""
        if not life.is_due(cluster, time.time()):
            return
        beaten = await self.api.patch(RAYCLUSTERS, cluster["metadata"]["name"], life.beat(time.time()))
        if beaten is not None:
            self._sight.made(RAYCLUSTERS, beaten)

    async def _is_submitted(self, request: RayRequest) -> bool:
        if request.name not in self._submitted and await outbox.submitted(request):
            self._submitted.add(request.name)
        return request.name in self._submitted

    async def _submitted_to(self, request: RayRequest) -> RayApi | None:
        """The cluster that the job of *request* was submitted to, once it was; ``None`` when that cannot come."""
        while True:
            cluster = await self._cluster_with_job(request)
            if cluster:
                return await self._ray(cluster)
            if cluster is None:
                return None
            await self._sight.changed(request, within_s=_QUIET_S)

    async def _cluster_with_job(self, request: RayRequest) -> str | None:
        """Its name; empty where the job is not there yet, ``None`` where it will not be."""
        if not request.owns_cluster:
            if await self._is_submitted(request):
                return request.cluster_name
            return "" if await self._sight.get(RAYCLUSTERS, request.cluster_name) else None
        job = await self._sight.get(_OWN[request.kind], request.name)
        if job is None:
            return None if await outbox.submitted(request) else ""
        return statuses.cluster_of(job) if statuses.is_submitted(job) else ""

    async def _ray(self, cluster: str) -> RayApi:
        if cluster not in self._rays:
            self._rays[cluster] = await self._reach.open(self.api, cluster)
        return self._rays[cluster]
