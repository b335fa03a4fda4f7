"""``SimulatedBackend``: requests on simulated slices of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from airflow_raytpu.backends import outbox, rayjobs, rayslices
from airflow_raytpu.backends.base import LogLine
from airflow_raytpu.backends.rayapi import RayApi
from airflow_raytpu.backends.simulated import cluster, orphans, seen
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.state import Phase
from airflow_raytpu.model.errors import (
    BackendUnreachable,
    ClusterError,
    LostError,
    PathError,
)
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.orphans import Orphan
from airflow_raytpu.model.request import RayRequest
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
        if request.shared:
            return
        found = await asyncio.to_thread(self._attach, request)
        if found is None:
            return
        if request.kind.is_job and not found.lost and found.record.phase is Phase.READY:
            await rayjobs.stop(self._api(found), request)
        if request.owns_cluster:
            await asyncio.to_thread(self._remove, found, request)

    async def delete(self, request: RayRequest) -> None:
        await self.stop(request)
        found = await asyncio.to_thread(self._attach, request)
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
        return cluster.attach(self._root, request.cluster_name)

    def _ensure_cluster(self, request: RayRequest) -> Cluster:
        found = self._attach(request)
        if request.owns_cluster:
            if found is not None and found.lost and bool(found.submitter(request.name)):
                return found  # accepted once: that it is lost now is for the observation to say
            return _fitting(cluster.start(self._root, request), request)
        if found is None or found.lost:
            raise LostError(
                f"The shared cluster {request.cluster_name} is gone. {found.lost if found else ''}".strip(),
                "Run its cluster task again.",
            )
        return found

    async def _submit(self, found: Cluster, request: RayRequest) -> None:
        await rayjobs.submit(self._api(found), request)
        found.note_submitted(request.name, request.identity.owner())

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


def _fitting(found: Cluster, request: RayRequest) -> Cluster:
    """:raises RequestError: the cluster has another slice than is asked for."""
    if found.record.slice != request.slice:
        raise rayjobs.misfit(found.record.name, found.record.slice, request.slice)
    return found
