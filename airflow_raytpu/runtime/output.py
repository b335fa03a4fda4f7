"""The parts of a batch inference's output: written whole or not at all, and recognised when they are already there."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from airflow_raytpu.model.errors import RowCountError
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.batching import Part
from airflow_raytpu.runtime.parquet import FOOTER_THREADS, NoParquetError, reading
from airflow_raytpu.runtime.spans import Span

_MARK = b"airflow_raytpu"


def write(part: Part, folder: str, predicted: Mapping[str, np.ndarray], mark: Mapping[str, Any]) -> None:
    """Write the kept rows of the part's input with the *predicted* columns beside them, in one step.

    :param mark: what :func:`is_done` compares later.
    :raises RowCountError: a column has not one value for each row.
    """
    table = Span(part.file, 0, part.keep).read()
    for name, column in predicted.items():
        if len(column) != part.keep:
            raise RowCountError(
                f"{part.file.name}: {len(column)} predictions for {part.keep} rows.", "This is a fault of the runtime."
            )
        table = table.append_column(name, to_arrow(column))
    _put(part, folder, table, mark)


def write_empty(part: Part, folder: str, like: Part | None, mark: Mapping[str, Any]) -> None:
    """Write a part that has no row, with the columns that the part *like* was written with."""
    table = part.file.schema.empty_table()
    if like is not None:
        with reading(folder, like.name) as file:
            table = file.schema_arrow.empty_table()
    _put(part, folder, table, mark)


def missing(parts: Sequence[Part], folder: str, lineage: Sequence[str], model: str | None) -> list[tuple[int, Part]]:
    """Those of *parts* that are not :func:`done <is_done>`, with their numbers."""
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        done = pool.map(lambda part: is_done(part, folder, lineage, model), parts)
        return [(number, part) for number, (part, there) in enumerate(zip(parts, done, strict=True)) if not there]


def is_done(part: Part, folder: str, lineage: Sequence[str], model: str | None) -> bool:
    """Whether *part* is there, whole, from the same model, and the work of an attempt of *lineage*."""
    try:
        with reading(folder, part.name) as file:
            mark = json.loads((file.schema_arrow.metadata or {}).get(_MARK, b"{}"))
            rows = file.metadata.num_rows
    except NoParquetError:
        return False
    return rows == part.keep == mark.get("rows") and mark.get("request") in lineage and mark.get("model") == model


def count(parts: Sequence[Part], folder: str) -> int:
    """Rows in the written *parts*, by their footers."""

    def rows(part: Part) -> int:
        with reading(folder, part.name) as file:
            return int(file.metadata.num_rows)

    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        return sum(pool.map(rows, parts))


def _put(part: Part, folder: str, table: pa.Table, mark: Mapping[str, Any]) -> None:
    text = json.dumps({**mark, "source": part.file.name, "rows": part.keep}).encode()
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), _MARK: text}), buffer)
    files.write_bytes(f"{folder}/{part.name}", buffer.getvalue())


def to_arrow(column: np.ndarray) -> pa.Array:
    """*column* as Arrow: rows of several values become lists; what Arrow does not know (bfloat16) becomes float32."""
    if column.dtype.kind not in "biuf":
        column = column.astype(np.float32)
    array = pa.array(np.ascontiguousarray(column).reshape(-1))
    for length in reversed(column.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, length)
    return array
