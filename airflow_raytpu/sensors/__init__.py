"""What an author waits for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {"TpuSliceSensor": "airflow_raytpu.sensors.capacity"}

__all__ = ["TpuSliceSensor"]

if TYPE_CHECKING:
    from airflow_raytpu.sensors.capacity import TpuSliceSensor


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
