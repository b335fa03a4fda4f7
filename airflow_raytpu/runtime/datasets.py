"""Ray Data over spans of Parquet files: fixed rows for each rank, in a fixed order, list columns as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from ray.train import DataConfig

from airflow_raytpu.model.errors import PathError, RequestError
from airflow_raytpu.runtime.parquet import ParquetFile, Span, chop, read, scan, share

if TYPE_CHECKING:
    from ray.data import DataIterator, Dataset

SMALL_BYTES = 64_000_000
"""Below this much data, a process reads its rows itself: starting Ray's read tasks would take longer than reading."""

_PIECE_ROWS = 65_536
_SMALL = {"int64": "int32", "uint64": "uint32", "float64": "float32"}


class PerRank(DataConfig):  # type: ignore[misc]
    """Gives each rank its own rows of each dataset: the same rows, in the same order, in every attempt.

    Ray's own split hands out blocks as they come, so a resumed run would see rows twice and miss others. Shares are
    equal, as SPMD needs; the last ``rows % ranks`` rows of a dataset are left out.
    """

    def __init__(self, inputs: Mapping[str, Sequence[ParquetFile]]) -> None:
        super().__init__()
        self._inputs = {name: list(found) for name, found in inputs.items()}

    def configure(
        self, datasets: Mapping[str, Dataset], world_size: int, *_: Any, **__: Any
    ) -> list[dict[str, DataIterator]]:
        """One iterator for each rank and dataset."""
        return [
            {name: self._rank(self._inputs[name], rank, world_size).iterator() for name in datasets}
            for rank in range(world_size)
        ]

    def _rank(self, found: list[ParquetFile], rank: int, ranks: int) -> Dataset:
        rows = sum(file.rows for file in found) // ranks
        spans = chop(share([file.span() for file in found], rank * rows, (rank + 1) * rows), _PIECE_ROWS)
        return dataset([partial(rows_of, span) for span in spans], sum(span.size for span in spans))


def inputs(uris: Mapping[str, str], ranks: int) -> dict[str, list[ParquetFile]]:
    """The files of each dataset.

    :raises PathError: there are none.
    :raises RequestError: fewer rows than ranks.
    """
    found = {name: scan(uri) for name, uri in uris.items()}
    for name, some in found.items():
        rows = sum(file.rows for file in some)
        if rows < ranks:
            raise RequestError(
                f"The dataset {name!r} has {rows} rows for {ranks} hosts.", "Give at least a row to each host."
            )
    return found


def dataset(sources: Sequence[Callable[[], pa.Table]], size: float) -> Dataset:
    """A dataset of what *sources* return, in their order.

    :param size: about how many bytes that is.
    """
    import ray.data

    # Also where a dataset runs on another process's behalf: progress bars would fill the job's log.
    ray.data.DataContext.get_current().enable_progress_bars = False
    if size <= SMALL_BYTES:
        # from_arrow would start a worker process only to count the rows.
        return ray.data.from_blocks([pa.concat_tables([source() for source in sources])])
    made = ray.data.from_items([{"source": index} for index in range(len(sources))], override_num_blocks=len(sources))
    made.context.execution_options.preserve_order = True
    return made.map_batches(_Reader(sources), batch_size=1, batch_format="numpy")


class _Reader:
    """Calls one source. An object, because Ray Data names its operators after the class."""

    def __init__(self, sources: Sequence[Callable[[], pa.Table]]) -> None:
        self._sources = list(sources)

    def __call__(self, batch: dict[str, Any]) -> pa.Table:
        return self._sources[int(batch["source"][0])]()


def rows_of(span: Span, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of *span*, list columns as tensors."""
    return as_tensors(read(span, columns))


def as_tensors(table: pa.Table) -> pa.Table:
    """*table* with list columns of one length as tensor columns, which alone become arrays on a device.

    :raises PathError: a list column's rows differ in length.
    """
    for index, column in enumerate(table.schema):
        if is_list(column.type):
            table = table.set_column(index, column.name, _tensor(to_numpy(table.column(index), column.name)))
    return table


def as_arrays(table: pa.Table) -> pa.Table:
    """*table* with every column as a device takes it: lists as tensors, 64-bit numbers as 32-bit ones.

    :raises PathError: a whole number that 32 bits do not hold, lists of different lengths, or missing values.
    """
    for index, column in enumerate(table.schema):
        array = narrow(to_numpy(table.column(index), column.name), column.name)
        table = table.set_column(index, column.name, _tensor(array) if array.ndim > 1 else pa.array(array))
    return table


def narrow(array: np.ndarray, name: str) -> np.ndarray:
    """*array* without 64-bit numbers, which JAX cuts down without a word.

    :raises PathError: a whole number that does not fit.
    """
    small = _SMALL.get(array.dtype.name)
    if small is None:
        return array
    cut = array.astype(small)
    if array.dtype.kind in "iu" and not np.array_equal(cut, array):
        raise PathError(
            f"The column {name!r} holds whole numbers beyond 32 bits.",
            "Leave it out with columns=[...]; it is written to the output as it is.",
        )
    return cut


def _tensor(array: np.ndarray) -> Any:
    from ray.data.extensions import ArrowTensorArray

    return ArrowTensorArray.from_numpy(array)


def to_numpy(column: pa.ChunkedArray, name: str) -> np.ndarray:
    """A numeric column, or one of equal lists of them, as an array of ``rows`` and the lists' lengths.

    :raises PathError: lists of different lengths, or values that are missing.
    """
    array, shape = column.combine_chunks(), [len(column)]
    while is_list(array.type):
        if array.null_count:
            raise PathError(
                f"The column {name!r} has {array.null_count} empty values.", "Fill them, or leave the column out."
            )
        length = pc.list_value_length(array) if len(array) else pa.array([0])
        low, high = pc.min_max(length).as_py().values()
        if low != high:
            raise PathError(
                f"The lists of the column {name!r} have {low} to {high} values.",
                "Make them equal, or leave the column out.",
            )
        shape.append(high)
        array = array.flatten()
    _no_gaps(array, name)
    return np.ascontiguousarray(array.to_numpy(zero_copy_only=False)).reshape(shape)


def _no_gaps(array: pa.Array, name: str) -> None:
    if array.null_count:
        raise PathError(
            f"The column {name!r} has {array.null_count} empty values.", "Fill them, or leave the column out."
        )


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a column of *kind* can go to a device: numbers and truth values, or lists of them."""
    while is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
