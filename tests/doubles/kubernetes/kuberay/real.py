"""A KubeRay with simulated slices: what is applied really runs on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Self

import aiohttp

from airflow_raytpu.backends.simulated.state import Arrivals
from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.kinds import Kind
from tests.doubles.kubernetes.kuberay import rulebook
from tests.doubles.kubernetes.kuberay.ground import Ground
from tests.doubles.kubernetes.kuberay.real_clusters import RealClusters
from tests.doubles.kubernetes.kuberay.real_jobs import RealJobs
from tests.doubles.kubernetes.kuberay.real_services import RealServices
from tests.doubles.kubernetes.refusal import Refusal
from tests.doubles.kubernetes.store import Item


class RealController:
    """``async with FakeKubernetes(...) as k, RealController(k, root):``; nothing is left when the block ends.

    :param root: folder of the simulated clusters, with a short path.
    :param tick_s: pause between two rounds; the real operator looks at a RayJob every 3 s.
    :param arrivals: how slices come, and come back.
    """

    def __init__(self, k: Contents, root: Path, *, tick_s: float = 0.25, arrivals: Arrivals | None = None) -> None:
        self._k = k
        self._tick_s = tick_s
        self._ground = Ground(root, arrivals or Arrivals())

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        self.clusters = RealClusters(self._k, self._ground, self._session)
        self.jobs = RealJobs(self._k, self.clusters)
        self._services = RealServices(self._k, self.clusters)
        self._k.objects.admission.append(_webhook)
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        """:raises Exception: the controller itself failed meanwhile, or slices do not end."""
        self._k.objects.admission.remove(_webhook)
        self._task.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        finally:
            try:
                await self.clusters.end()
            finally:
                await self._session.close()

    def restart(self) -> None:
        """The operator's pod began anew: it knows what the API server and Ray have, and no more."""
        self._services.forget()

    async def settled(self) -> None:
        """Return once the slices of every RayCluster that has gone have ended, to the last process."""
        await self.clusters.settled()

    async def _run(self) -> None:
        while True:
            await self.jobs.round()
            await self._services.round()
            await self.clusters.round()
            await asyncio.sleep(self._tick_s)


def _webhook(verb: str, kind: Kind, item: Item) -> Refusal | None:
    if (verb, kind.plural) != ("create", "rayclusters"):
        return None
    why = rulebook.webhook_denial(item["spec"])
    words = f'admission webhook "kuberay-tpu-webhook.ray.io" denied the request: {why}'
    return Refusal(400, "", words) if why else None
