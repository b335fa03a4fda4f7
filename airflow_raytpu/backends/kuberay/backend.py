"""``KubeRayBackend``: requests as RayClusters, RayJobs and RayServices on Kubernetes."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from airflow_raytpu.backends import outbox, rayjobs
from airflow_raytpu.backends.base import LogLine
from airflow_raytpu.backends.kuberay import orphans, slicing, statuses
from airflow_raytpu.backends.kuberay.api import RAYCLUSTERS, RAYJOBS, Access, KubeApi, Pace
from airflow_raytpu.backends.kuberay.guests import Guests
from airflow_raytpu.backends.kuberay.own import OwnObjects, resource_of
from airflow_raytpu.backends.kuberay.patience import Patience
from airflow_raytpu.backends.kuberay.reach import Rays, Reach
from airflow_raytpu.backends.kuberay.services import Services
from airflow_raytpu.backends.kuberay.sight import Sight
from airflow_raytpu.backends.kuberay.site import Site
from airflow_raytpu.backends.kuberay.watch import Rhythm
from airflow_raytpu.backends.rayapi import RayApi
from airflow_raytpu.model.application import has_service, service
from airflow_raytpu.model.errors import ForbiddenError, NotInstalledError, PlaceError, RayTpuError
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.orphans import Orphan
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.slices import SliceState

_QUIET_S = 10.0
"""Between two looks while nothing is told of; a job's progress is in storage, which tells of nothing by itself."""

_PACE = Pace(whole=30.0)
"""Shorter than the limit that callers set, so that they learn the cause and not only that time was up."""

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
        self._reach = reach or Reach()
        self._site = Site(self.api, Sight(self.api, deployment, rhythm), Rays(self._reach, self.api), now)
        self._own = OwnObjects(self._site)
        self._guests = Guests(self._site)
        self._services = Services(self._site, self._own, self._guests)
        self._patience = Patience()

    async def ensure(self, request: RayRequest) -> bool:
        return await self._hands(request).ensure(request)

    async def observe(self, request: RayRequest) -> Observation:
        try:
            observation = await self._look(request)
            if _may_have_begun(request, observation):
                # Read after the job's state: the result is written before the job ends, so an ended job's is there.
                progress, outcome = await outbox.read(request)
                if outcome is not None and resource_of(request) is RAYJOBS and not _has_ended(observation):
                    observation = await self._look_closer(request, observation)
                if outcome is not None and outcome.succeeded and has_service(request):
                    await self._services.keep(request, outcome)
                observation = replace(observation, progress=progress, outcome=outcome)
        except (ForbiddenError, NotInstalledError) as error:
            return self._patience.meaning(request, error, self._site.now())
        except RayTpuError as error:
            return Observation.unreachable(error.cause)
        self._patience.renew(request)
        return observation

    async def wait(self, request: RayRequest, pause_s: float) -> None:
        await self._site.sight.changed(_made_by(request), within_s=max(pause_s, _QUIET_S))

    async def tail(self, request: RayRequest, offset: int = 0) -> AsyncIterator[LogLine]:
        ray = await self._submitted_to(request)
        if ray is None:
            return
        async with aclosing(rayjobs.tail(ray, request, offset)) as lines:
            async for line in lines:
                yield line

    async def stop(self, request: RayRequest) -> None:
        if not request.shared:
            await self._hands(request).stop(request)
        elif request.kind is Kind.CLUSTER:
            await self._own.give_back(request)

    async def delete(self, request: RayRequest) -> None:
        if request.shared and request.kind is Kind.CLUSTER:
            return
        await self._hands(request).delete(request)

    async def slices(self, cluster_name: str | None = None) -> list[SliceState]:
        return await (slicing.of_all(self._site) if cluster_name is None else slicing.of_one(self._site, cluster_name))

    async def orphans(self, deployment: str, older_than_s: float) -> list[Orphan]:
        return await orphans.find(self.api, deployment, older_than_s)

    async def reap(self, orphan: Orphan) -> bool:
        return await orphans.end(self.api, orphan)

    async def close(self) -> None:
        await self._site.close()

    def _hands(self, request: RayRequest) -> OwnObjects | Guests | Services:
        """What carries *request* out."""
        if has_service(request):
            return self._services
        return self._own if request.owns_cluster else self._guests

    async def _look(self, request: RayRequest, *, ask_ray: bool = False) -> Observation:
        own, now = resource_of(request), self._site.now()
        seen = await self._site.sight.of(_made_by(request), own)
        if seen.cluster is not None:
            await self._site.beat(seen.cluster)
        elif seen.job is not None:
            await self._site.beat(seen.job, RAYJOBS)  # it may wait for its cluster for days
        if has_service(request):
            observation = await self._services.look(request, seen)
        elif own is None:
            observation = await self._guests.look(request, seen)
        elif own is RAYJOBS and ask_ray and seen.job is not None and seen.cluster is not None:
            job = await (await self._site.rays.of(seen.cluster)).get_job(request.name)
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

    def _with_blindness(self, seen: Observation) -> Observation:
        """What waits says as well what cannot be seen, for that may be the very cause."""
        blind = self._site.sight.blind() if seen.job in {None, JobState.QUEUED} else ""
        return replace(seen, detail="; ".join(filter(None, (seen.detail, blind)))) if blind else seen

    def _with_link(self, observation: Observation, cluster: Body | None) -> Observation:
        if not observation.facts or cluster is None:
            return observation
        link = self._reach.link(self.api.namespace, cluster["metadata"]["name"])
        return replace(observation, facts={**observation.facts, "dashboard": link} if link else observation.facts)

    async def _submitted_to(self, request: RayRequest) -> RayApi | None:
        """The cluster that the job of *request* was submitted to, once it was; ``None`` when that cannot come."""
        while True:
            name = await self._cluster_with_job(request)
            if name is None:
                return None
            cluster = await self._site.sight.get(RAYCLUSTERS, name) if name else None
            if cluster is not None:
                return await self._site.rays.of(cluster)
            await self._site.sight.changed(_made_by(request), within_s=_QUIET_S)

    async def _cluster_with_job(self, request: RayRequest) -> str | None:
        """Its name; empty where the job is not there yet, ``None`` where it will not be."""
        if has_service(request):
            return await self._services.cluster_with(request)
        own = resource_of(request)
        if own is None:
            return await self._guests.cluster_with(request)
        job = await self._site.sight.get(own, request.name)
        if job is None:
            return None if await outbox.submitted(request) else ""
        return statuses.cluster_of(job) if statuses.is_submitted(job) else ""


def _may_have_begun(request: RayRequest, seen: Observation) -> bool:
    """Whether there may be progress or a result. A task that waits for its slice reads no storage."""
    if seen.job is JobState.QUEUED:
        # Its Ray is up, and KubeRay may have handed the job over without saying so yet.
        return request.owns_cluster and seen.cluster is ClusterState.READY
    return seen.job is not None


def _made_by(request: RayRequest) -> RayRequest:
    """The request that the objects under *request* are called after."""
    return service(request) if has_service(request) else request


def _has_ended(seen: Observation) -> bool:
    return seen.job is not None and seen.job.ended
