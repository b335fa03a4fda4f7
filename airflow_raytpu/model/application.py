"""A serving application as Serve's declarative configuration states it (Ray 2.60). Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from airflow_raytpu.model.request import RayRequest

REPLICA = "replica"
"""Argument of a request: the slice of one replica. Argument of the builder: the options that pin it to one."""


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
