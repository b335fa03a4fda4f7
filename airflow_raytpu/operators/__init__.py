"""What an author says: one operator per kind of request."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "IterJaxBatchInferenceOperator": "airflow_raytpu.operators.inference",
    "JaxTrainerOperator": "airflow_raytpu.operators.train",
    "RayServeDeleteOperator": "airflow_raytpu.operators.serve",
    "RayServeDeployOperator": "airflow_raytpu.operators.serve",
    "RayTpuClusterDeleteOperator": "airflow_raytpu.operators.cluster",
    "RayTpuClusterOperator": "airflow_raytpu.operators.cluster",
    "RayTpuJobOperator": "airflow_raytpu.operators.job",
    "RayTpuReapOperator": "airflow_raytpu.operators.reap",
}

__all__ = [
    "IterJaxBatchInferenceOperator",
    "JaxTrainerOperator",
    "RayServeDeleteOperator",
    "RayServeDeployOperator",
    "RayTpuClusterDeleteOperator",
    "RayTpuClusterOperator",
    "RayTpuJobOperator",
    "RayTpuReapOperator",
]

if TYPE_CHECKING:
    from airflow_raytpu.operators.cluster import RayTpuClusterDeleteOperator, RayTpuClusterOperator
    from airflow_raytpu.operators.inference import IterJaxBatchInferenceOperator
    from airflow_raytpu.operators.job import RayTpuJobOperator
    from airflow_raytpu.operators.reap import RayTpuReapOperator
    from airflow_raytpu.operators.serve import RayServeDeleteOperator, RayServeDeployOperator
    from airflow_raytpu.operators.train import JaxTrainerOperator


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
