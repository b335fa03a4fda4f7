"""RayService: a serving application with a cluster of its own. Pure."""

from __future__ import annotations

from typing import Any

import yaml

from airflow_raytpu.backends.kuberay.making.pods import SERVE_PORT
from airflow_raytpu.model import application
from airflow_raytpu.model.request import RayRequest

INITIALIZING = "ray.io/initializing-timeout"
"""Annotation after whose seconds KubeRay gives a service up that never became ready (1.7)."""


def fields(request: RayRequest) -> dict[str, Any]:
    """What is ours in any RayService."""
    return {
        "serveConfigV2": yaml.safe_dump(configuration(request), sort_keys=False),
        # Any other kind brings up a second whole cluster for a change: twice the TPUs.
        "upgradeStrategy": {"type": "None"},
    }


def configuration(request: RayRequest) -> dict[str, Any]:
    """Serve's declarative configuration, as the runtime's own rollouts state it."""
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "0.0.0.0", "port": SERVE_PORT},  # noqa: S104 - a pod's own address
        "applications": [application.configuration(request)],
    }
