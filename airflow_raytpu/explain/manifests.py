"""The Kubernetes object that a task would be, where its connection leads to Kubernetes."""

from __future__ import annotations

import json
import time
from typing import Any

from airflow_raytpu.explain.rendering import RUN
from airflow_raytpu.hooks.raytpu import KUBERAY, Place, RayTpuHook, setting
from airflow_raytpu.model import application
from airflow_raytpu.model.elastic import ARGUMENT as ELASTIC
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.operators._arguments import is_literal
from airflow_raytpu.operators._lifecycle import RequestOperator
from airflow_raytpu.operators.serve import RayServeDeployOperator
from airflow_raytpu.placement import elastic_rules
from airflow_raytpu.placement.intent import Intent
from airflow_raytpu.placement.topology import TpuSlice, widest


def manifest_of(task: RequestOperator, intent: Intent, name: str) -> dict[str, Any] | None:
    """The RayCluster, RayJob or RayService of *task*; ``None`` where it makes none, or its slice is not known yet.

    Reads the connection and contacts nobody. Deadlines are counted from now.

    :param name: stands for the object's name, whose end only a run knows.
    """
    place = _place(task)
    if place is None or getattr(task, "cluster", None) is not None or intent.slice is None:
        return None
    from airflow_raytpu.backends.kuberay.manifest import manifest

    request = _request(task, intent, place)
    if application.has_service(request):
        # Every run has the same one, so its name is known.
        return manifest(application.service(request), KubeRayOptions.from_dict(request.options), time.time())
    made = manifest(request, KubeRayOptions.from_dict(request.options), time.time())
    return dict(_renamed(made, request.name, name))


def _place(task: RequestOperator) -> Place | None:
    try:
        place = RayTpuHook(task.conn_id).place()
    except RequestError:
        return None  # the run will say so; what can be told without a connection is told
    return place if place.backend == KUBERAY else None


def _request(task: RequestOperator, intent: Intent, place: Place) -> RayRequest:
    own = Identity(deployment=setting("deployment"), dag_id=task.dag_id, task_id=task.task_id, run_id=RUN)
    identity = task.identity(own)
    elastic = elastic_rules.of(intent)
    arguments = {} if elastic is None else {ELASTIC: elastic.to_list()}
    if isinstance(task, RayServeDeployOperator):
        arguments = _plain(task.asked(task.model))
    stated = task.storage_path if isinstance(task.storage_path, str) and is_literal(task.storage_path) else ""
    root = (stated or place.storage).rstrip("/")
    return RayRequest(
        identity=identity,
        kind=task.kind,
        slice=str(widest(TpuSlice.parse(intent.slice or ""), elastic)),
        shared=identity is not own,
        storage=f"{root}/{own.storage_path()}",
        limits=task.limits(time.time()),
        code=f"{root}/code/<content>.zip" if task.kind.is_job else None,
        ttl_s=intent.ttl_s,
        options=place.options_of(task.kuberay),
        arguments=arguments,
    )


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """*arguments* as JSON, with a word for what other tasks will have returned."""
    return dict(json.loads(json.dumps(arguments, default=str)))


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(each, old, new) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, old, new) for each in value]
    return value.replace(old, new) if isinstance(value, str) else value
