"""Jobs that Ray's own API carries out on a cluster that is there: submitted once, looked at, stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_raytpu.backends import outbox, rayjobs
from airflow_raytpu.backends.kuberay import statuses
from airflow_raytpu.backends.kuberay.api import RAYCLUSTERS
from airflow_raytpu.backends.kuberay.site import Site
from airflow_raytpu.backends.kuberay.statuses import Seen
from airflow_raytpu.backends.rayapi import RayApi
from airflow_raytpu.backends.rayslices import OWNER
from airflow_raytpu.model.errors import ClusterError, LostError
from airflow_raytpu.model.observation import ClusterState, Observation
from airflow_raytpu.model.request import RayRequest

Body = Mapping[str, Any]


class Guests:
    """The jobs of other requests' clusters."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._submitted: set[str] = set()

    async def ensure(self, request: RayRequest) -> bool:
        """See :meth:`~airflow_raytpu.backends.base.Backend.ensure`."""
        if await self.is_submitted(request):
            return True
        seen = await self._site.sight.of(request, None)
        if seen.cluster is None or seen.cluster["metadata"].get("deletionTimestamp"):
            raise LostError(f"The shared cluster {request.cluster_name} is gone.", "Run its cluster task again.")
        await self._site.beat(seen.cluster)
        there = statuses.of_cluster(seen, self._site.now())
        if there.fault is not None or there.cluster is ClusterState.FAILED:
            cause, lever = (there.fault.cause, there.fault.lever) if there.fault else (there.detail, "")
            raise ClusterError(f"Cluster {request.cluster_name} is of no use: {cause}", lever)
        if there.cluster is not ClusterState.READY:
            return False
        await self.submit(seen.cluster, request, where=seen.cluster)
        return True

    async def submit(self, cluster: Body, request: RayRequest, *, where: Body) -> None:
        """Submit *request* to *cluster*, whose Ray can be asked.

        :param where: what it was submitted to as whoever asks for it sees it: that cluster, or the service above it.
        """
        await rayjobs.submit(await self._site.rays.of(cluster), request)
        await outbox.note_submitted(request, where["metadata"]["uid"])
        self._submitted.add(request.name)

    async def look(
        self, request: RayRequest, seen: Seen, meaning: Callable[..., Observation] = statuses.of_job_on_cluster
    ) -> Observation:
        """The job as its cluster's Ray says.

        :param meaning: what becomes of what was seen; ``statuses.of_job_on_cluster``, or one like it.
        """
        now, submitted = self._site.now(), await self.is_submitted(request)
        if not submitted or seen.cluster is None or not statuses.is_ready(seen.cluster):
            return meaning(seen, None, now, submitted=submitted, asked=False)
        job = await (await self._site.rays.of(seen.cluster)).get_job(request.name)
        return meaning(seen, job, now, submitted=submitted)

    async def stop(self, request: RayRequest) -> None:
        if (ray := await self._ray_with(request)) is not None:
            await rayjobs.stop(ray, request)

    async def delete(self, request: RayRequest) -> None:
        await self.stop(request)
        if (ray := await self._ray_with(request)) is not None:
            await ray.delete_job(request.name)

    async def is_submitted(self, request: RayRequest) -> bool:
        if request.name not in self._submitted and await outbox.submitted(request):
            self._submitted.add(request.name)
        return request.name in self._submitted

    async def cluster_with(self, request: RayRequest) -> str | None:
        """Name of the cluster with the job; empty where the job is not there yet, ``None`` where it will not be."""
        if await self.is_submitted(request):
            return request.cluster_name
        return "" if await self._site.sight.get(RAYCLUSTERS, request.cluster_name) else None

    async def _ray_with(self, request: RayRequest) -> RayApi | None:
        """The Ray of the cluster that has the job of *request*; ``None`` where none has it.

        Ray itself is asked: that it was submitted may never have been noted.
        """
        cluster = await self._site.api.get(RAYCLUSTERS, request.cluster_name)
        if cluster is None or not (statuses.is_ready(cluster) or await self.is_submitted(request)):
            return None
        ray = await self._site.rays.of(cluster)
        job = await ray.get_job(request.name)
        return ray if job is not None and job.metadata.get(OWNER) == request.identity.owner() else None
