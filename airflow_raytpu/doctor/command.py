"""The command, from its arguments to its exit status."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

from airflow_raytpu.doctor import local, screen, storage
from airflow_raytpu.doctor.findings import Found, Level
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.placement.topology import TpuSlice

ERRORS = 1
"""Exit status where something keeps requests from running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user asked.

    :param slice: a shape to look for, as people write it; empty for none.
    :param namespace: instead of the connection's.
    :param output: ``text``, ``json`` or ``yaml``.
    """

    conn_id: str
    slice: str = ""
    namespace: str = ""
    output: str = "text"


def run(question: Question) -> int:
    """Print what was found; the exit status.

    :raises RayTpuError: there is no such connection, or no such shape.
    """
    from airflow_raytpu.hooks.raytpu import RayTpuHook, read_airflows_own_connections

    read_airflows_own_connections()
    tpu_slice = TpuSlice.parse(question.slice) if question.slice else None
    place = RayTpuHook(question.conn_id).place()
    found = _looked_at(place, tpu_slice, question.namespace)
    screen.show(found, _title(question, place), question.output, sys.stdout)
    return ERRORS if any(each.level is Level.ERROR for each in found) else 0


def _looked_at(place: Any, tpu_slice: TpuSlice | None, namespace: str) -> list[Found]:
    if place.backend == "kuberay":
        found = asyncio.run(_visit(place, tpu_slice, namespace))
    else:
        found = list(local.looked_at(place.root, tpu_slice))
    return [*found, storage.written(place.storage)]


async def _visit(place: Any, tpu_slice: TpuSlice | None, namespace: str) -> list[Found]:
    """The one way in: a place of the hook's as a visit."""
    from airflow_raytpu.backends.kuberay.api import KubeApi, Pace
    from airflow_raytpu.backends.kuberay.reach import Way
    from airflow_raytpu.doctor import cluster
    from airflow_raytpu.doctor.visit import Visit
    from airflow_raytpu.hooks.kubernetes import KubernetesAccess

    options = KubeRayOptions.over(place.options, {"namespace": namespace} if namespace else {})
    proxied = place.reach.known is Way.PROXY
    api = KubeApi(KubernetesAccess(place.kubernetes_conn_id), options.namespace, Pace(once=5.0, whole=15.0))
    try:
        return await cluster.looked_at(Visit(api=api, options=options, tpu_slice=tpu_slice, proxied=proxied))
    finally:
        await api.close()


def _title(question: Question, place: Any) -> str:
    where = "simulated slices on this machine"
    if place.backend == "kuberay":
        namespace = question.namespace or KubeRayOptions.from_dict(place.options).namespace
        where = f"KubeRay, namespace {namespace}"
    looked_for = f", looking for {question.slice}" if question.slice else ""
    return f"{question.conn_id}: {where}, storage {place.storage}{looked_for}"
