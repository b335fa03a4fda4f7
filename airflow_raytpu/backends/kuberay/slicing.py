"""The slices of one cluster, or of every cluster of ours, as their Rays show them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from airflow_raytpu.backends import rayslices
from airflow_raytpu.backends.kuberay import statuses
from airflow_raytpu.backends.kuberay.api import RAYCLUSTERS
from airflow_raytpu.backends.kuberay.site import Site
from airflow_raytpu.model.errors import LostError, PlaceError
from airflow_raytpu.model.slices import SliceCondition, SliceState


async def of_all(site: Site) -> list[SliceState]:
    pictures = await asyncio.gather(*(_of_or_fault(site, cluster) for cluster in await site.sight.clusters()))
    return [state for picture in pictures for state in picture]


async def of_one(site: Site, name: str) -> list[SliceState]:
    """:raises LostError: there is no such cluster."""
    cluster = await site.sight.get(RAYCLUSTERS, name)
    if cluster is None:
        raise LostError(f"There is no cluster {name}.", "Run its cluster task again.")
    await site.beat(cluster)
    return await _of(site, cluster)


async def _of(site: Site, cluster: Mapping[str, Any]) -> list[SliceState]:
    name, due = cluster["metadata"]["name"], statuses.slices_due(cluster)
    if not statuses.is_ready(cluster):
        return rayslices.unseen(name, due, SliceCondition.STARTING)
    return rayslices.slices(name, await (await site.rays.of(cluster)).listing(), due)


async def _of_or_fault(site: Site, cluster: Mapping[str, Any]) -> list[SliceState]:
    try:
        return await _of(site, cluster)
    except PlaceError:
        name, due = cluster["metadata"]["name"], statuses.slices_due(cluster)
        return rayslices.unseen(name, due, SliceCondition.BROKEN, "its Ray does not answer")
