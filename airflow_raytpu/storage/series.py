"""The metrics of a training run over its steps, as they stand in storage: for a plot, or a test."""

from __future__ import annotations

from airflow_raytpu.model.series import Point, of_files
from airflow_raytpu.storage import objects

__all__ = ["Point", "series"]


def series(uri: str) -> list[Point]:
    """The points of a run, over all its attempts: each step once, and in order; none where there are none yet.

    :param uri: what the training task returned as ``"series"``.
    :raises BackendUnreachable: storage gave no answer.
    """
    files = {name.rpartition("/")[2]: objects.read_bytes(name) or b"" for name in objects.list_prefix(uri)}
    return of_files({name: data.decode(errors="replace") for name, data in files.items()})
