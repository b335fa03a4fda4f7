"""What a task read and wrote, in OpenLineage's words; asked for by Airflow's provider of that, where it is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_raytpu.model.request import Kind, RayRequest


def lineage(request: RayRequest, value: Mapping[str, Any]) -> Any:
    """An ``OperatorLineage`` of the work of *request*, which returned *value*."""
    from airflow.providers.common.compat.openlineage.facet import (
        Dataset,
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage

    def written(uri: str) -> Any:
        rows = value.get("rows_out")
        told = {} if rows is None else {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=rows)}
        return OutputDataset(*dataset(uri), outputFacets=told)

    return OperatorLineage(
        inputs=[Dataset(*dataset(uri)) for uri in reads(request, value)],
        outputs=[written(uri) for uri in writes(request, value)],
    )


def reads(request: RayRequest, value: Mapping[str, Any]) -> list[str]:
    """Addresses of what went in."""
    arguments, found = request.arguments, list[Any]()
    if request.kind is Kind.TRAIN:
        stated = arguments["datasets"].values()
        found = [*(each["uri"] if isinstance(each, Mapping) else each for each in stated), value.get("warm_start")]
    elif request.kind is Kind.INFERENCE:
        found = [arguments["input"], arguments["model"]]
    elif request.kind is Kind.SERVE:
        found = [arguments["model"]]
    return list(dict.fromkeys(filter(None, found)))


def writes(request: RayRequest, value: Mapping[str, Any]) -> list[str]:
    """Addresses of what came out."""
    found = list[Any]()
    if request.kind is Kind.TRAIN:
        found = [value.get("checkpoint"), value.get("best_checkpoint")]
    elif request.kind is Kind.INFERENCE:
        found = [value.get("output")]
    return list(dict.fromkeys(filter(None, found)))


def dataset(uri: str) -> tuple[str, str]:
    """Namespace and name of *uri*, as OpenLineage names what lies in a bucket or on a disk."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    return (f"gs://{parts.netloc}", path.strip("/") or "/") if parts.scheme == "gs" else ("file", path)
