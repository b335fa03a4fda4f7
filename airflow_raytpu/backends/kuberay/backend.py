"""``KubeRayBackend``: requests as RayClusters, RayJobs and RayServices on Kubernetes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from airflow_raytpu.backends import outbox, rayjobs, rayslices
from airflow_raytpu.backends.base import LogLine
from airflow_raytpu.backends.kuberay import life, naming, orphans, statuses
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
from airflow_raytpu.backends.kuberay.patience import Patience
from airflow_raytpu.backends.kuberay.reach import Rays, Reach
from airflow_raytpu.backends.kuberay.sight import Sight
from airflow_raytpu.backends.kuberay.statuses import Seen
from airflow_raytpu.backends.kuberay.watch import Rhythm
from airflow_raytpu.backends.rayapi import RayApi
from airflow_raytpu.backends.rayslices import OWNER
from airflow_raytpu.model.errors import (
    ClusterError,
    ForbiddenError,
    LostError,
    NotInstalledError,
    PlaceError,
    RayTpuError,
)
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.orphans import Orphan
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.slices import SliceCondition, SliceState

_GONE_POLL_S = 1.0
_QUIET_S = 10.0
"""Between two looks while nothing is told of; a job's progress is in storage, which tells of nothing by itself."""

_PACE = Pace(whole=30.0)
"""Shorter than the limit that callers set, so that they learn the cause and not only that time was up."""

_BEAT_S, _BEAT_AGAIN_S = 5.0, 60.0
"""A sign of life may take so long, and is left out for so long after one that failed: it must not delay a look."""

_STOP_S = 40.0

_OWN = dict.fromkeys(Kind, RAYJOBS) | {Kind.CLUSTER: RAYCLUSTERS, Kind.SERVE: RAYSERVICES}

Body = Mapping[str, Any]

log = logging.getLogger(__name__)


class KubeRayBackend:
    """See :class:`~airflow_raytpu.backends.base.Backend`.

    What is there is asked for object by object until somebody waits; from then on it is watched, and looking costs no
    request.

    :param deployment: whose objects are watched and listed.
    :param rhythm: of the watches.
    :param now: the clock, seconds since the epoch.
    """

    name = "kuberay"

    def __init__(
        self,
        access: Access,
        namespace: str,
        deployment: str,
        reach: Reach | None = None,
        pace: Pace = _PACE,
        rhythm: Rhythm | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.api = KubeApi(access, namespace, pace)
        self._sight = Sight(self.api, deployment, rhythm)
        self._reach = reach or Reach()
        self._rays = Rays(self._reach, self.api)
        self._submitted: set[str] = set()
        self._patience = Patience()
        self._beat_at = 0.0
        self._now = now

    async def ensure(self, request: RayRequest) -> bool:
        return await (self._ensure_own(request) if request.owns_cluster else self._ensure_job(request))

    async def observe(self, request: RayRequest) -> Observation:
        try:
            observation = await self._look(request)
            if self._may_have_begun(request, observation):
                # Read after the job's state: the result is written before the job ends, so an ended job's is there.
                progress, outcome = await outbox.read(request)
                if outcome is not None and request.owns_cluster and not _has_ended(observation):
                    observation = await self._look_closer(request, observation)
                observation = replace(observation, progress=progress, outcome=outcome)
        except (ForbiddenError, NotInstalledError) as error:
            return self._patience.meaning(request, error, self._now())
        except RayTpuError as error:
            return Observation.unreachable(error.cause)
        self._patience.renew(request)
        return observation

    async def wait(self, request: RayRequest, pause_s: float) -> None:
        await self._sight.changed(request, within_s=max(pause_s, _QUIET_S))

    async def tail(self, request: RayRequest, offset: int = 0) -> AsyncIterator[LogLine]:
        ray = await self._submitted_to(request)
        if ray is None:
            return
        async with aclosing(rayjobs.tail(ray, request, offset)) as lines:
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
        while True:
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
        await self._rays.close()
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
        if found["metadata"].get("deletionTimestamp"):
            return False  # what is on its way out must be gone first: then its name is free
        if request.kind.is_job and not await self._is_submitted(request):
            # The answer to its creation was lost, or its creator was.
            await outbox.note_submitted(request, found["metadata"]["uid"])
        return True

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
        body = manifest(request, KubeRayOptions.from_dict(request.options), self._now())
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
        there = statuses.of_cluster(seen, self._now())
        if there.fault is not None or there.cluster is ClusterState.FAILED:
            cause, lever = (there.fault.cause, there.fault.lever) if there.fault else (there.detail, "")
            raise ClusterError(f"Cluster {request.cluster_name} is of no use: {cause}", lever)
        if there.cluster is not ClusterState.READY:
            return False
        await rayjobs.submit(await self._rays.of(seen.cluster), request)
        await outbox.note_submitted(request, seen.cluster["metadata"]["uid"])
        self._submitted.add(request.name)
        return True

    async def _look(self, request: RayRequest, *, ask_ray: bool = False) -> Observation:
        own, now = _OWN[request.kind] if request.owns_cluster else None, self._now()
        seen = await self._sight.of(request, own)
        if seen.cluster is not None:
            await self._beat(seen.cluster)
        elif seen.job is not None:
            await self._beat(seen.job, RAYJOBS)  # it may wait for its cluster for days
        if own is None:
            observation = await self._look_at_job(request, seen, now)
        elif own is RAYJOBS and ask_ray and seen.job is not None and seen.cluster is not None:
            job = await (await self._rays.of(seen.cluster)).get_job(request.name)
            observation = statuses.of_job(seen, now, job, missed=job is None)
        else:
            observation = statuses.observe(seen, request, now)
        return self._with_blindness(self._with_link(observation, seen.cluster))

    async def _look_closer(self, request: RayRequest, observation: Observation) -> Observation:
        """Ask Ray where there is a result already: KubeRay looks every few seconds, and never where it is down."""
        try:
            return await self._look(request, ask_ray=True)
        except PlaceError as error:
            log.debug("Ray does not tell about %s: %s", request.name, error.cause)
            return observation

    @staticmethod
    def _may_have_begun(request: RayRequest, seen: Observation) -> bool:
        """Whether there may be progress or a result. A task that waits for its slice reads no storage."""
        if seen.job is JobState.QUEUED:
            # Its Ray is up, and KubeRay may have handed the job over without saying so yet.
            return request.owns_cluster and seen.cluster is ClusterState.READY
        return seen.job is not None

    def _with_blindness(self, seen: Observation) -> Observation:
        """What waits says as well what cannot be seen, for that may be the very cause."""
        blind = self._sight.blind() if seen.job in {None, JobState.QUEUED} else ""
        return replace(seen, detail="; ".join(filter(None, (seen.detail, blind)))) if blind else seen

    async def _look_at_job(self, request: RayRequest, seen: Seen, now: float) -> Observation:
        """A job of a shared cluster, as that cluster's Ray says."""
        submitted = await self._is_submitted(request)
        if not submitted or seen.cluster is None or not statuses.is_ready(seen.cluster):
            return statuses.of_job_on_cluster(seen, None, now, submitted=submitted, asked=False)
        job = await (await self._rays.of(seen.cluster)).get_job(request.name)
        return statuses.of_job_on_cluster(seen, job, now, submitted=submitted)

    def _with_link(self, observation: Observation, cluster: Body | None) -> Observation:
        if not observation.facts or cluster is None:
            return observation
        link = self._reach.link(self.api.namespace, cluster["metadata"]["name"])
        return replace(observation, facts={**observation.facts, "dashboard": link} if link else observation.facts)

    async def _ray_with(self, request: RayRequest) -> RayApi | None:
        """The Ray of the shared cluster that has the job of *request*; ``None`` where none has it.

        Ray itself is asked: that it was submitted may never have been noted.
        """
        cluster = await self.api.get(RAYCLUSTERS, request.cluster_name)
        if cluster is None or not (statuses.is_ready(cluster) or await self._is_submitted(request)):
            return None
        ray = await self._rays.of(cluster)
        job = await ray.get_job(request.name)
        return ray if job is not None and job.metadata.get(OWNER) == request.identity.owner() else None

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
        """Let the job end in good order; its cluster goes next in any case, so no trouble here may hold that up."""
        try:
            async with asyncio.timeout(_STOP_S):
                cluster = await self._sight.get(RAYCLUSTERS, statuses.cluster_of(job))
                if cluster is not None:
                    await rayjobs.stop(await self._rays.of(cluster), request)
        except (RayTpuError, TimeoutError) as error:
            log.warning("%s is deleted without having been stopped: %s", request.name, error)

    async def _remains(self, request: RayRequest, uid: str) -> bool:
        """The object is still there, or a cluster or pods of it, which hold the hosts."""
        found = await self.api.get(_OWN[request.kind], request.name)
        if found is not None and found["metadata"]["uid"] == uid:
            return True
        return await self._sight.has_children(request.name)

    async def _slices(self, cluster: Body) -> list[SliceState]:
        name, due = cluster["metadata"]["name"], statuses.slices_due(cluster)
        if not statuses.is_ready(cluster):
            return rayslices.unseen(name, due, SliceCondition.STARTING)
        return rayslices.slices(name, await (await self._rays.of(cluster)).listing(), due)

    async def _slices_or_fault(self, cluster: Body) -> list[SliceState]:
        try:
            return await self._slices(cluster)
        except PlaceError:
            name, due = cluster["metadata"]["name"], statuses.slices_due(cluster)
            return rayslices.unseen(name, due, SliceCondition.BROKEN, "its Ray does not answer")

    async def _beat(self, item: Body, resource: Resource = RAYCLUSTERS) -> None:
        """A sign of life on an object of ours, a few times in its time to live however many look at it."""
        now, name = self._now(), item["metadata"]["name"]
        if now < self._beat_at or not life.is_due(item, now):
            return
        try:
            async with asyncio.timeout(_BEAT_S):
                beaten = await self.api.patch(resource, name, life.beat(now))
        except (RayTpuError, TimeoutError) as error:
            self._beat_at = now + _BEAT_AGAIN_S
            log.warning("%s gets no sign of life, and ends when its time to live is over: %s", name, error)
            return
        if beaten is not None:
            self._sight.made(resource, beaten)

    async def _is_submitted(self, request: RayRequest) -> bool:
        if request.name not in self._submitted and await outbox.submitted(request):
            self._submitted.add(request.name)
        return request.name in self._submitted

    async def _submitted_to(self, request: RayRequest) -> RayApi | None:
        """The cluster that the job of *request* was submitted to, once it was; ``None`` when that cannot come."""
        while True:
            name = await self._cluster_with_job(request)
            if name is None:
                return None
            cluster = await self._sight.get(RAYCLUSTERS, name) if name else None
            if cluster is not None:
                return await self._rays.of(cluster)
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

    async def orphans(self, deployment: str, older_than_s: float) -> list[Orphan]:
        return await orphans.find(self.api, deployment, older_than_s)

    async def reap(self, orphan: Orphan) -> bool:
        return await orphans.end(self.api, orphan)


def _has_ended(seen: Observation) -> bool:
    return seen.job is not None and seen.job.ended
