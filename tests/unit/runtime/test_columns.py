"""Columns as a device takes them, or a clear word about why not."""

import numpy as np
import pyarrow as pa
import pytest

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.runtime.columns import is_numeric, narrow, to_numpy


def column(values, kind):
    return pa.chunked_array([pa.array(values[:1], kind), pa.array(values[1:], kind)])


@pytest.mark.parametrize(
    ("values", "kind", "shape"),
    [
        ([1, 2, 3], pa.int32(), (3,)),
        ([True, False, True], pa.bool_(), (3,)),
        ([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8()), (3, 2)),
        ([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2), (3, 2)),
        ([[[1], [2]], [[3], [4]], [[5], [6]]], pa.large_list(pa.list_(pa.float32())), (3, 2, 1)),
    ],
)
def test_numbers_and_equal_lists_become_arrays(values, kind, shape):
    array = to_numpy(column(values, kind), "x")

    assert array.shape == shape
    assert array.tolist() == values
    assert is_numeric(kind)


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.string()), pa.timestamp("s"), pa.binary(), pa.struct([])])
def test_other_columns_never_go_to_a_device(kind):
    assert not is_numeric(kind)


def test_unequal_lists_are_named():
    with pytest.raises(PathError, match="'x' have 1 to 2 values"):
        to_numpy(column([[1, 2], [3]], pa.list_(pa.int8())), "x")


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1, None], pa.int32()), ([[1], None], pa.list_(pa.int8())), ([[1], [None]], pa.list_(pa.int8()))],
)
def test_missing_values_are_named(values, kind):
    with pytest.raises(PathError, match="'x' has 1 empty values"):
        to_numpy(column(values, kind), "x")


def test_a_slice_reads_its_own_lists():
    whole = pa.chunked_array([pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2))])

    assert to_numpy(whole.slice(1, 2), "x").tolist() == [[3, 4], [5, 6]]


def test_64_bits_become_32_or_are_refused():
    assert narrow(np.array([1, -1]), "x").dtype == np.int32
    assert narrow(np.array([0.5]), "x").dtype == np.float32
    assert narrow(np.array([0.5], np.float16), "x").dtype == np.float16
    with pytest.raises(PathError, match="'x' holds whole numbers beyond 32 bits"):
        narrow(np.array([2**31]), "x")


def test_tensors_keep_their_shape():
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensors = pa.chunked_array([pa.FixedShapeTensorArray.from_numpy_ndarray(values)])

    assert (to_numpy(tensors, "x") == values).all()
    assert (to_numpy(tensors.slice(1), "x") == values[1:]).all()


def test_words_stay_words():
    assert to_numpy(column(["a", "b"], pa.string()), "x").tolist() == ["a", "b"]
