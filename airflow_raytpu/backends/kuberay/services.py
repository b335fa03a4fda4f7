"""Applications with a RayService of their own: one for each name, for all runs; each rollout is a job on its cluster.

The service's ``serveConfigV2`` says what is good. KubeRay sends that to Serve when Serve has lost it, so whatever
restarts, the last version that has proven good comes back.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_raytpu.backends import outbox
from airflow_raytpu.backends.kuberay import statuses
from airflow_raytpu.backends.kuberay.api import RAYSERVICES
from airflow_raytpu.backends.kuberay.guests import Guests
from airflow_raytpu.backends.kuberay.making import serving
from airflow_raytpu.backends.kuberay.own import OwnObjects
from airflow_raytpu.backends.kuberay.resources import Body
from airflow_raytpu.backends.kuberay.site import Site
from airflow_raytpu.backends.kuberay.statuses import Seen
from airflow_raytpu.model import application
from airflow_raytpu.model.errors import PlaceError
from airflow_raytpu.model.observation import Observation
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome


class Services:
    """The RayServices of rollouts; every method takes the rollout's request."""

    def __init__(self, site: Site, own: OwnObjects, guests: Guests) -> None:
        self._site = site
        self._own = own
        self._guests = guests

    async def ensure(self, request: RayRequest) -> bool:
        """See :meth:`~airflow_raytpu.backends.base.Backend.ensure`: the service first, then the rollout on it."""
        if await self._guests.is_submitted(request):
            return True
        if not await self._own.ensure(application.service(request)):
            return False
        seen = await self.seen(request)
        if seen.service is None or seen.cluster is None or not statuses.is_ready(seen.cluster):
            return False  # what keeps it from coming up, the observation says
        good = serving.good(seen.service, str(request.arguments["name"]))
        if good is not None:
            # The cluster remembers it as well, until its head begins anew.
            request = replace(request, arguments={**request.arguments, application.GOOD: dict(good)})
        await self._guests.submit(seen.cluster, request, where=seen.service)
        return True

    async def seen(self, request: RayRequest) -> Seen:
        return await self._site.sight.of(application.service(request), RAYSERVICES)

    async def keep(self, request: RayRequest, outcome: Outcome) -> None:
        """Make the version of *request*, which has proven good, the one that comes back. Again is no harm.

        :raises BackendUnreachable: no answer, or somebody else wrote at the same time; call again.
        """
        service = application.service(request)
        found = await self._site.api.get(RAYSERVICES, service.name)
        # That it was submitted may never have been noted.
        if found is None or (await outbox.submitted(request) or found["metadata"]["uid"]) != found["metadata"]["uid"]:
            return  # it is gone, and what has its name now is for later rollouts to prove
        at = outcome.value.get(application.PROVEN_AT)
        patch = serving.proven(found, request, at if isinstance(at, int | float) else 0.0)
        if patch and (changed := await self._site.api.patch(RAYSERVICES, service.name, patch)) is not None:
            self._site.sight.made(RAYSERVICES, changed)

    async def look(self, request: RayRequest, seen: Seen) -> Observation:
        """The rollout as the Ray of the service's cluster says."""
        if seen.cluster is None and seen.service is not None:
            await self._site.beat(seen.service, RAYSERVICES)
        return await self._guests.look(request, seen, statuses.of_rollout)

    async def stop(self, request: RayRequest) -> None:
        """Stop the rollout. Its service stays, unless this rollout made it and no version has ever proven good."""
        try:
            if (cluster := await self._cluster(request)) is not None:
                await self._guests.stop(replace(request, cluster=cluster))
        except PlaceError:
            # Its Ray may be past answering, and a service that never served must go all the same.
            if not await self._settle(request):
                raise
        else:
            await self._settle(request)

    async def delete(self, request: RayRequest) -> None:
        """Remove the rollout's job."""
        await self.stop(request)
        if (cluster := await self._cluster(request)) is not None:
            await self._guests.delete(replace(request, cluster=cluster))

    async def cluster_with(self, request: RayRequest) -> str | None:
        """Name of the cluster with the job; empty where the job is not there yet, ``None`` where it will not be."""
        found = await self._service(request)
        if not await self._guests.is_submitted(request):
            return ""
        return statuses.cluster_of(found) if found is not None else None

    async def _settle(self, request: RayRequest) -> bool:
        """Keep the service for good where the rollout succeeded, else give it back if it may go; whether it went."""
        _, outcome = await outbox.read(request)
        if outcome is not None and outcome.succeeded:
            await self.keep(request, outcome)
            return False
        return await self._own.give_back(application.service(request))

    async def _cluster(self, request: RayRequest) -> str | None:
        found = await self._service(request)
        return (statuses.cluster_of(found) or None) if found is not None else None

    async def _service(self, request: RayRequest) -> Body | None:
        return await self._site.sight.get(RAYSERVICES, application.service(request).name)
