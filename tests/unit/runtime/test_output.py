"""A part is there whole, or not at all."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from airflow_raytpu.model.errors import RowCountError
from airflow_raytpu.runtime import files, output
from airflow_raytpu.runtime.batching import Part, parts
from airflow_raytpu.runtime.buckets import SilentError
from airflow_raytpu.runtime.parquet import scan

MARK = {"request": "one", "model": "m"}


@pytest.fixture
def made(write_rows):
    return parts(scan(write_rows(3, 4, 0)), 4, "pad")


@pytest.fixture
def folder(tmp_path):
    return (tmp_path / "out").as_uri()


def test_a_part_has_the_inputs_columns_and_the_predicted_ones(made, folder, tmp_path):
    output.write(made[1], folder, {"digit": np.arange(4), "pair2": np.ones((4, 2), np.float32)}, MARK)

    table = pq.read_table(tmp_path / "out" / made[1].name)
    assert table.column_names == ["id", "value", "pair", "digit", "pair2"]
    assert table["id"].to_pylist() == ["row-3", "row-4", "row-5", "row-6"]
    assert table["digit"].to_pylist() == [0, 1, 2, 3]
    assert table["pair2"].to_pylist() == [[1.0, 1.0]] * 4


def test_only_a_whole_part_of_this_model_and_lineage_is_done(made, folder, tmp_path):
    part = made[0]
    assert not output.is_done(part, folder, ["one"], "m")

    output.write(part, folder, {"digit": np.arange(3)}, MARK)

    assert output.is_done(part, folder, ["two", "one"], "m")
    assert output.missing(made, folder, ["one"], "m") == [(1, made[1]), (2, made[2])]
    assert not output.is_done(part, folder, ["two"], "m")
    assert not output.is_done(part, folder, ["one"], "other")
    assert not output.is_done(Part(part.file, part.name, 2), folder, ["one"], "m")

    whole = (tmp_path / "out" / part.name).read_bytes()
    # Of the second one the end is whole, but not what it ends.
    for broken in (whole[: len(whole) // 2], whole[:-40] + b"\xff" * 32 + whole[-8:]):
        (tmp_path / "out" / part.name).write_bytes(broken)
        assert not output.is_done(part, folder, ["one"], "m")


def test_a_part_that_cannot_be_looked_at_is_not_written_anew(made, folder, monkeypatch):
    output.write(made[0], folder, {"digit": np.arange(3)}, MARK)

    def silent(uri):
        raise OSError("google::cloud::Status(UNAVAILABLE: Retry policy exhausted)")

    monkeypatch.setattr(files, "locate", silent)

    with pytest.raises(SilentError, match="could not be read"):
        output.is_done(made[0], folder, ["one"], "m")


def test_a_dropped_tail_is_not_written(made, folder, tmp_path):
    part = Part(made[0].file, made[0].name, 2)
    output.write(part, folder, {"digit": np.arange(2)}, MARK)
    output.write_empty(made[2], folder, part, MARK)

    assert output.count([part, made[2]], folder) == 2
    assert output.is_done(made[2], folder, ["one"], "m")
    assert pq.read_table(tmp_path / "out" / made[2].name).column_names == ["id", "value", "pair", "digit"]


def test_an_input_without_any_row_has_an_output_without_any(made, folder):
    output.write_empty(made[2], folder, None, MARK)

    assert output.count([made[2]], folder) == 0


def test_predictions_that_do_not_match_the_rows_are_refused(made, folder):
    with pytest.raises(RowCountError, match="2 predictions for 3 rows"):
        output.write(made[0], folder, {"digit": np.arange(2)}, MARK)


def test_numbers_that_arrow_does_not_know_become_floats():
    import ml_dtypes

    assert output.to_arrow(np.ones(2, ml_dtypes.bfloat16)).to_pylist() == [1.0, 1.0]
