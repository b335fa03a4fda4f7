"""``SimulatedBackend``: requests on simulated slices of this machine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from airflow_raytpu.backends import outbox, rayjobs, rayslices
from airflow_raytpu.backends.base import LogLine
from airflow_raytpu.backends.rayapi import RayApi
from airflow_raytpu.backends.simulated import cluster, orphans, seen
from airflow_raytpu.backends.simulated.folder import Cluster
from airflow_raytpu.backends.simulated.state import Phase
from airflow_raytpu.model.application import PROVEN_AT, has_service, service
from airflow_raytpu.model.errors import BackendUnreachable, ClusterError, LostError, PathError
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.orphans import Orphan
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.model.slices import SliceCondition, SliceState

_POLL_S = 1.0


class SimulatedBackend:
    """See :class:`~airflow_raytpu.backends.base.Backend`.

    :param root: folder of the clusters; ``$RAYTPU_SIM_ROOT`` or ``/tmp/raytpu-<uid>`` where left out.
    """

    name = "simulated"

    def __init__(self, root: Path | None = None) -> None:
        self._stated_root = root
        self._apis: dict[str, RayApi] = {}

    async def ensure(self, request: RayRequest) -> bool:
        if _is_alone(request) and await outbox.submitted(request):
            return True  # accepted once: that its cluster is gone now is for the observation to say
        found = await asyncio.to_thread(self._ensure_cluster, request)
        found.beat()
        if found.record.phase is Phase.STOPPING:
            return False  # it is on its way out, and its name will be free
        if not request.kind.is_job:
            return True
        if submitter := found.submitter(request.name):
            rayjobs.refuse_foreign(f"Job {request.name} on cluster {found.record.name}", submitter, request)
            return True
        state = seen.cluster_state(found.record)
        if state is ClusterState.FAILED:
            raise ClusterError(f"Cluster {found.record.name} is of no use: {found.record.detail}")
        if state is not ClusterState.READY:
            return False
        await self._submit(found, request)
        return True

    async def observe(self, request: RayRequest) -> Observation:
        try:
            observation = await self._look(request)
            # Read after the job's state: the result is written before the job ends, so an ended job's is there.
            progress, outcome = await outbox.read(request) if request.kind.is_job else (None, None)
            if outcome is not None and outcome.succeeded and has_service(request):
                await asyncio.to_thread(self._keep, request, outcome)  # nobody needs to look at it any more
        except ClusterError as error:
            absent = JobState.ABSENT if request.kind.is_job else None
            return Observation(cluster=ClusterState.FAILED, job=absent, detail=error.cause)
        except (BackendUnreachable, PathError) as error:
            return Observation.unreachable(error.cause)
        return replace(observation, progress=progress, outcome=outcome)

    async def wait(self, request: RayRequest, pause_s: float) -> None:  # noqa: ARG002 - the backend's signature
        await asyncio.sleep(pause_s)

    async def tail(self, request: RayRequest, offset: int = 0) -> AsyncIterator[LogLine]:
        found = await self._submitted(request)
        if found is None:
            return
        async with aclosing(rayjobs.tail(self._api(found), request, offset)) as lines:
            async for line in lines:
                yield line

    async def stop(self, request: RayRequest) -> None:
        found = await asyncio.to_thread(self._attach, request)
        if found is None:
            return
        if request.shared:
            if request.kind is Kind.CLUSTER and _is_wasted(found, request):
                await asyncio.to_thread(cluster.remove, found)
            return
        if request.kind.is_job and not found.lost and found.record.phase is Phase.READY:
            stays = has_service(request) and not _is_wasted(found, service(request))
            await rayjobs.stop(self._api(found), replace(request, cluster=found.record.name) if stays else request)
        if has_service(request):
            await self._settle(found, request)
        elif request.owns_cluster:
            await asyncio.to_thread(self._remove, found, request)

    async def delete(self, request: RayRequest) -> None:
        await self.stop(request)
        found = await asyncio.to_thread(self._attach, request)
        if request.shared:
            if found is not None and request.kind is Kind.SERVE:
                await asyncio.to_thread(self._remove, found, request)
            return
        if found is not None and request.kind.is_job and not found.lost and found.record.phase is Phase.READY:
            await self._api(found).delete_job(request.name)

    async def slices(self, cluster_name: str | None = None) -> list[SliceState]:
        if cluster_name is None:
            clusters = await asyncio.to_thread(cluster.living, self._root)
            pictures = await asyncio.gather(*map(self._slices_or_fault, clusters))
            return [state for picture in pictures for state in picture]
        found = await asyncio.to_thread(cluster.attach, self._root, cluster_name)
        if found is None or not found.serves:
            why = (found.lost or found.record.detail) if found else ""
            raise LostError(f"There is no cluster {cluster_name}. {why}".strip(), "Run its cluster task again.")
        found.beat()
        return await self._slices(found)

    async def orphans(self, deployment: str, older_than_s: float) -> list[Orphan]:
        return await asyncio.to_thread(orphans.find, self._root, deployment, older_than_s)

    async def reap(self, orphan: Orphan) -> bool:
        return await asyncio.to_thread(orphans.end, self._root, orphan)

    async def close(self) -> None:
        apis, self._apis = list(self._apis.values()), {}
        for api in apis:
            await api.close()

    @property
    def _root(self) -> Path:
        return cluster.root_folder(self._stated_root)

    def _attach(self, request: RayRequest) -> Cluster | None:
        return cluster.attach(self._root, _home(request).cluster_name)

    def _ensure_cluster(self, request: RayRequest) -> Cluster:
        found, home = self._attach(request), _home(request)
        if home.owns_cluster:
            if found is not None and (found.lost or _served(found)) and bool(found.submitter(request.name)):
                return found  # accepted once: that it is lost now is for the observation to say
            if found is not None and found.record.phase is Phase.FAILED and (_served(found) or not home.kind.is_job):
                self._remove(found, home)  # nothing is left of it, and others need it
            found = _fitting(cluster.start(self._root, home), home)
            if home.shared:
                found.outlive(home.ttl_s)
            return found
        if found is None or found.lost:
            raise LostError(
                f"The shared cluster {request.cluster_name} is gone. {found.lost if found else ''}".strip(),
                "Run its cluster task again.",
            )
        return found

    def _keep(self, rollout: RayRequest, outcome: Outcome) -> None:
        """Let the service of *rollout*, which succeeded, live until it is deleted."""
        found = self._attach(rollout)
        # One that was made later serves nothing yet.
        if found is not None and found.record.created_at <= outcome.value.get(PROVEN_AT, 0.0):
            found.outlive(math.inf)

    async def _settle(self, found: Cluster, rollout: RayRequest) -> None:
        """Keep the service where the *rollout*, which has ended, succeeded; give it back where it never served."""
        _, outcome = await outbox.read(rollout)
        if outcome is not None and outcome.succeeded:
            await asyncio.to_thread(self._keep, rollout, outcome)
        elif _is_wasted(found, service(rollout)):
            await asyncio.to_thread(cluster.remove, found)

    async def _submit(self, found: Cluster, request: RayRequest) -> None:
        await rayjobs.submit(self._api(found), request)
        found.note_submitted(request.name, request.identity.owner())
        if _is_alone(request):
            await outbox.note_submitted(request, found.record.uid)

    async def _look(self, request: RayRequest) -> Observation:
        found = await asyncio.to_thread(self._attach, request)
        is_job = request.kind.is_job
        if found is None:
            return seen.without_job(None, "", is_job=is_job, submitted=False)
        found.beat()
        submitted = bool(found.submitter(request.name))
        if not is_job or found.lost or seen.cluster_state(found.record) is not ClusterState.READY:
            return seen.without_job(found.record, found.lost, is_job=is_job, submitted=submitted)
        return seen.with_job(found.record, await self._api(found).get_job(request.name), submitted=submitted)

    async def _slices(self, found: Cluster) -> list[SliceState]:
        name, due = found.record.name, seen.slices_due(found.record)
        if found.record.phase is not Phase.READY:
            return rayslices.unseen(name, due, SliceCondition.STARTING)
        awaited = {part.name: due.pop(part.name) for part in found.record.slices if part.awaited}
        listed = rayslices.slices(name, await self._api(found).listing(), due)
        # Ray may list hosts of an awaited slice already, and those of one that was lost still.
        there = [state for state in listed if state.name in due]
        starting = rayslices.unseen(name, awaited, SliceCondition.STARTING)
        return sorted([*there, *starting], key=lambda state: state.name)

    async def _slices_or_fault(self, found: Cluster) -> list[SliceState]:
        try:
            return await self._slices(found)
        except BackendUnreachable:
            due = seen.slices_due(found.record)
            return rayslices.unseen(found.record.name, due, SliceCondition.BROKEN, "its Ray does not answer")

    async def _submitted(self, request: RayRequest) -> Cluster | None:
        """The cluster once the request is submitted there; ``None`` when that can no longer come."""
        while True:
            found = await asyncio.to_thread(self._attach, request)
            if found is None or found.lost or found.record.phase in {Phase.STOPPING, Phase.FAILED}:
                return None
            if bool(found.submitter(request.name)):
                return found
            await asyncio.sleep(_POLL_S)

    def _remove(self, found: Cluster, request: RayRequest) -> None:
        rayjobs.refuse_foreign(f"Cluster {found.record.name}", found.record.owner, request)
        cluster.remove(found)

    def _api(self, found: Cluster) -> RayApi:
        uid = found.record.uid
        if uid not in self._apis:
            self._apis[uid] = RayApi(found.record.dashboard, found.token())
        return self._apis[uid]


def _is_alone(request: RayRequest) -> bool:
    """A job with a cluster for itself, of which nothing tells once both are over."""
    return request.kind.is_job and request.owns_cluster and not has_service(request)


def _home(request: RayRequest) -> RayRequest:
    """The request that the cluster under *request* is called after."""
    return service(request) if has_service(request) else request


def _served(found: Cluster) -> bool:
    """A version of the application that it is for has proven good there."""
    return found.record.ttl_s == math.inf


def _is_wasted(found: Cluster, request: RayRequest) -> bool:
    """*request*, which shares it, made it, and it is of no use to anybody (yet)."""
    ours = found.record.owner == request.identity.owner() and found.creator == request.storage
    served = found.record.phase is Phase.READY if request.kind is Kind.CLUSTER else _served(found)
    return ours and not served


def _fitting(found: Cluster, request: RayRequest) -> Cluster:
    """:raises RequestError: the cluster has another slice than is asked for."""
    there, asked = found.record.slice, request.slice
    if there != asked:
        refusal = rayjobs.misfit if request.kind is Kind.CLUSTER else rayjobs.other_service
        raise refusal(found.record.name, there, asked)
    return found
