"""Run Ray on TPU slices from Apache Airflow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Lazy, so that the Ray image can import the runtime without Airflow, and Airflow's provider discovery costs nothing.
_HOMES = {
    "CheckpointPolicy": "airflow_raytpu.model.policies",
    "Dataset": "airflow_raytpu.model.datasets",
    "Deadlines": "airflow_raytpu.model.deadlines",
    "Profile": "airflow_raytpu.model.policies",
    "RetryBudget": "airflow_raytpu.model.policies",
    "Rollout": "airflow_raytpu.model.policies",
    "TpuSlice": "airflow_raytpu.placement.topology",
    "slice_params": "airflow_raytpu.operators.params",
}

__all__ = [
    "CheckpointPolicy",
    "Dataset",
    "Deadlines",
    "Profile",
    "RetryBudget",
    "Rollout",
    "TpuSlice",
    "__version__",
    "slice_params",
]

if TYPE_CHECKING:
    from airflow_raytpu.model.datasets import Dataset
    from airflow_raytpu.model.deadlines import Deadlines
    from airflow_raytpu.model.policies import CheckpointPolicy, Profile, RetryBudget, Rollout
    from airflow_raytpu.operators.params import slice_params
    from airflow_raytpu.placement.topology import TpuSlice


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
