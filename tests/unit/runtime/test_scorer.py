"""Predicted rows find their places again, whatever way they come."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.model.errors import RowCountError, UserCodeError
from airflow_raytpu.runtime.batching import PADDING, parts, split
from airflow_raytpu.runtime.parquet import ParquetFile
from airflow_raytpu.runtime.scorer import Collector, check_prediction


@given(
    rows=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    per_host=st.integers(1, 16),
    random=st.randoms(use_true_random=False),
)
def test_batches_in_any_order_give_the_rows_in_order(rows, per_host, random):
    files = [ParquetFile("file:///x", f"{index}", (count,), 0, None) for index, count in enumerate(rows)]
    made = parts(files, per_host, "pad")
    (work,) = split(list(enumerate(made)), 1, per_host)
    numbers = list(range(work.rows)) + [PADDING] * work.padding
    random.shuffle(numbers)
    collector, got = Collector(work.pieces), {}

    for start in range(0, len(numbers), per_host):
        batch = np.array(numbers[start : start + per_host])
        got |= dict(collector.add(batch, {"double": batch * 2}))

    collector.close()
    assert collector.rows == sum(rows)
    for number, piece in enumerate(work.pieces):
        first = piece.first
        assert got[number]["double"].tolist() == [2 * row for row in range(first, first + piece.span.rows)]


def test_rows_that_never_came_back_are_counted():
    files = [ParquetFile("file:///x", "0", (4,), 0, None)]
    (work,) = split(list(enumerate(parts(files, 4, "pad"))), 1, 4)
    collector = Collector(work.pieces)
    list(collector.add(np.array([0, 2]), {"x": np.zeros(2)}))

    with pytest.raises(RowCountError, match="2 rows were fed and never came back"):
        collector.close()


def shaped(*shape):
    return SimpleNamespace(shape=shape)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([shaped(8)], "predict returned a list where a dict of arrays is due"),
        ({}, "predict returned a dict where"),
        ({"digit": shaped(7)}, r"predict returned 'digit' of shape \(7,\) for a batch of 8 rows"),
        ({"digit": shaped()}, r"predict returned 'digit' of shape \(\) for a batch of 8 rows"),
        ({"label": shaped(8)}, "predict returned a column 'label', and the input has one of that name"),
    ],
)
def test_a_prediction_that_is_not_a_row_for_a_row(shapes, message):
    with pytest.raises(UserCodeError, match=message):
        check_prediction("predict", shapes, 8, ["id", "label"])


def test_a_prediction_of_several_values_a_row():
    check_prediction("predict", {"digit": shaped(8), "logits": shaped(8, 10)}, 8, ["id"])
