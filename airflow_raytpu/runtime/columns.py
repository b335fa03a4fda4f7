"""Columns as arrays: equal lists as tensors, 64-bit numbers as 32-bit ones, or a clear word about why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_raytpu.model.errors import PathError

_SMALL = {"int64": "int32", "uint64": "uint32", "float64": "float32"}


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
    """A column, or one of equal lists or tensors, as an array of ``rows`` and the lists' lengths.

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
    if isinstance(array, pa.FixedShapeTensorArray):
        return np.ascontiguousarray(array.to_numpy_ndarray())
    values = np.ascontiguousarray(array.to_numpy(zero_copy_only=False))
    # Ray's own tensors come with their shape.
    return values if isinstance(array, pa.ExtensionArray) else values.reshape(shape)


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
