"""The container that gives a shared cluster back when Airflow is gone. Pure but for reading this package's own text."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.request import RayRequest

NAME = "keeper"
_MEMORY = "128Mi"


def container(request: RayRequest, options: KubeRayOptions) -> dict[str, Any]:
    """Beside Ray in the head's pod. Without the right to delete clusters it only says so in its log."""
    return {
        "name": NAME,
        "image": options.image,
        "command": ["python", "-c", _program()],
        "env": [{"name": "RAYTPU_CLUSTER", "value": request.name}],
        "resources": {"requests": {"cpu": "10m", "memory": _MEMORY}, "limits": {"memory": _MEMORY}},
    }


@functools.cache
def _program() -> str:
    # Kubernetes would put a variable in the place of "$(NAME)".
    text = resources.files("airflow_raytpu.backends.kuberay").joinpath("keeper.py").read_text(encoding="utf-8")
    return text.replace("$(", "$$(")
