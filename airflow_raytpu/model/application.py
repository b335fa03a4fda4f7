"""A serving application as Serve's declarative configuration states it (Ray 2.60), and the service under it. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest

REPLICA = "replica"
"""Argument of a request: the slice of one replica. Argument of the builder: the options that pin it to one."""

GOOD = "good"
"""Argument of a rollout on a service: the configuration to go back to, where the cluster itself has forgotten it."""

PROVEN_AT = "proven_at"
"""In a rollout's result: when its version had proven good, in seconds since the epoch, by the cluster's clock."""

_RUN = "serving"
"""Stands for the run in a service's identity, and keeps it apart from a cluster that is shared under the same name."""


def configuration(request: RayRequest) -> dict[str, Any]:
    """The application of *request*. Its version is its content, so that equal requests are one version."""
    arguments = request.arguments
    content = {name: arguments.get(name) for name in ("app", "app_args", "model", "route_prefix", REPLICA)}
    text = json.dumps({**content, "code": request.code}, sort_keys=True)
    return {
        "name": arguments["name"],
        "route_prefix": arguments["route_prefix"],
        "import_path": "airflow_raytpu.runtime.serve:build",
        "runtime_env": {"working_dir": request.code},
        "args": {
            "app": arguments["app"],
            "app_args": arguments["app_args"],
            "model": arguments["model"],
            "version": hashlib.sha256(text.encode()).hexdigest()[:12],
        },
    }


def has_service(request: RayRequest) -> bool:
    """Whether *request* is a rollout on a service of the application's own, rather than on somebody's cluster."""
    return request.kind is Kind.SERVE and request.owns_cluster and not request.shared


def service(request: RayRequest) -> RayRequest:
    """The service that the rollout *request* is for. It is the same for every run, and outlives them all."""
    identity = _identity(request.identity.deployment, str(request.arguments["name"]))
    return replace(request, identity=identity, shared=True)


def service_called(deployment: str, name: str) -> RayRequest:
    """The service of application *name*, as far as it takes to find and to delete it."""
    limits = Deadlines().since(0)
    return RayRequest(
        identity=_identity(deployment, name), kind=Kind.SERVE, slice="", storage="", limits=limits, shared=True
    )


def _identity(deployment: str, name: str) -> Identity:
    return Identity(deployment=deployment, dag_id="", task_id=name, run_id=_RUN)
