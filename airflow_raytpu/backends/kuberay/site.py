"""What one backend has of its namespace, and the sign of life that whoever looks leaves there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from airflow_raytpu.backends.kuberay import life
from airflow_raytpu.backends.kuberay.api import RAYCLUSTERS, KubeApi
from airflow_raytpu.backends.kuberay.reach import Rays
from airflow_raytpu.backends.kuberay.resources import Resource
from airflow_raytpu.backends.kuberay.sight import Sight
from airflow_raytpu.model.errors import RayTpuError

_BEAT_S, _BEAT_AGAIN_S = 5.0, 60.0
"""A sign of life may take so long, and is left out for so long after one that failed: it must not delay a look."""

log = logging.getLogger(__name__)


class Site:
    """One namespace as one backend has it.

    :param api: of the one namespace.
    :param sight: of the objects there.
    :param rays: the way to the Ray of its clusters.
    :param now: the clock, seconds since the epoch.
    """

    def __init__(self, api: KubeApi, sight: Sight, rays: Rays, now: Callable[[], float]) -> None:
        self.api = api
        self.sight = sight
        self.rays = rays
        self.now = now
        self._beat_at = 0.0

    async def close(self) -> None:
        await self.rays.close()
        await self.sight.close()
        await self.api.close()

    async def beat(self, item: Mapping[str, Any], resource: Resource = RAYCLUSTERS) -> None:
        """A sign of life on an object of ours, a few times in its time to live however many look at it."""
        now, name = self.now(), item["metadata"]["name"]
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
            self.sight.made(resource, beaten)
