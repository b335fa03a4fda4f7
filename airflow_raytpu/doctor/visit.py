"""One visit to a Kubernetes place: what is asked, and of whom."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_raytpu.backends.kuberay.api import KubeApi
from airflow_raytpu.doctor.needs import Need
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.placement.topology import TpuSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One connection's place.

    :param tpu_slice: the shape to look for; ``None`` for whatever is there.
    :param proxied: whether Ray is reached through the API server.
    """

    api: KubeApi
    options: KubeRayOptions
    tpu_slice: TpuSlice | None = None
    proxied: bool = True

    @property
    def namespace(self) -> str:
        return self.api.namespace

    async def may(self, need: Need) -> bool:
        return await self.api.may(need.verb, need.resource, need.subresource)
