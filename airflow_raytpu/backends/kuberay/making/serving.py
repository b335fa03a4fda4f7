"""RayService: a serving application with a cluster of its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from airflow_raytpu.backends.kuberay import naming
from airflow_raytpu.backends.kuberay.making.pods import SERVE_PORT
from airflow_raytpu.backends.kuberay.making.problems import read_yaml
from airflow_raytpu.model import application
from airflow_raytpu.model.request import RayRequest

INITIALIZING = "ray.io/initializing-timeout"
"""Annotation after whose seconds KubeRay gives a service up that never became ready (1.7)."""

CONFIG = "serveConfigV2"
"""What KubeRay sends to Serve when it changes, when Serve has no application, and when KubeRay itself began anew."""


def notes(request: RayRequest) -> dict[str, str]:
    """What is ours in the annotations of a RayService."""
    rollout_s = float((request.arguments.get("rollout") or {}).get("deadline_s", 0.0))
    # A rollout's own deadlines, which say why, come first.
    return {INITIALIZING: f"{request.limits.slice_wait_s + request.limits.start_s + rollout_s:.0f}"}


def fields(request: RayRequest) -> dict[str, Any]:
    """What is ours in any RayService."""
    return {
        CONFIG: yaml.safe_dump(configuration(request), sort_keys=False),
        # Any other kind brings up a second whole cluster for a change: twice the TPUs.
        "upgradeStrategy": {"type": "None"},
    }


def _proven_at(service: Mapping[str, Any]) -> float:
    try:
        return float(naming.note_of(service, naming.PROVEN_AT))
    except ValueError:
        return 0.0


def configuration(request: RayRequest) -> dict[str, Any]:
    """Serve's declarative configuration, as the runtime's own rollouts state it."""
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "0.0.0.0", "port": SERVE_PORT},  # noqa: S104 - a pod's own address
        "applications": [application.configuration(request)],
    }


def is_proven(service: Mapping[str, Any]) -> bool:
    """Whether what the RayService states has proven good. Its first version has not, until its rollout has ended."""
    return bool(naming.note_of(service, naming.VERSION))


def good(service: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The configuration of application *name* that is to come back; ``None`` where none has proven good."""
    stated = read_yaml((service.get("spec") or {}).get(CONFIG)) if is_proven(service) else None
    applications = (stated or {}).get("applications")
    found = applications if isinstance(applications, list) else []
    return next((each for each in found if isinstance(each, Mapping) and each.get("name") == name), None)


def proven(service: Mapping[str, Any], request: RayRequest, at: float) -> dict[str, Any]:
    """The patch that makes the version of *request* the one to come back; empty where a later one is that already.

    It touches the configuration alone: a change of the cluster's own part would bring up a second cluster.

    :param at: when that version had proven good, in seconds since the epoch.
    """
    if is_proven(service) and _proven_at(service) >= round(at, 3):
        return {}
    version = application.configuration(request)["args"]["version"]
    return {
        "metadata": {
            "resourceVersion": service["metadata"]["resourceVersion"],
            "annotations": {naming.VERSION: version, naming.PROVEN_AT: f"{at:.3f}"},
        },
        "spec": {CONFIG: fields(request)[CONFIG]},
    }
