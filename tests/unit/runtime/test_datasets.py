"""Equal shares of a dataset for each host: what is left over is dropped, filled up or refused, and never silently."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_raytpu.model.datasets import Dataset
from airflow_raytpu.model.errors import BatchSizeError, RequestError
from airflow_raytpu.runtime import datasets
from airflow_raytpu.runtime.datasets import inputs, shares, whole
from airflow_raytpu.runtime.sources import scan
from airflow_raytpu.runtime.spans import share


def shard(source, rank, ranks):
    """What a rank's Ray Dataset is made of, read here."""
    rows = shares("train", source, ranks)["per_host"]
    spans = share(source.spans, rank * rows, (rank + 1) * rows)
    return pa.concat_tables([part() for part in datasets._parts(source, spans, rows)])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    group=st.integers(1, 5),
    ranks=st.integers(1, 6),
    ragged=st.sampled_from(["drop", "pad"]),
)
def test_each_host_has_the_same_number_of_rows_and_each_row_is_somewhere_once(
    write_rows, tmp_path, sizes, group, ranks, ragged
):
    for path in (tmp_path / "input").glob("*"):
        path.unlink()
    source = scan(Dataset(write_rows(*sizes, group=group), ragged=ragged))
    total = sum(sizes)
    if ragged == "drop" and total < ranks:
        return
    counts = shares("train", source, ranks)
    parts = [shard(source, rank, ranks) for rank in range(ranks)]

    assert {len(part) for part in parts} == {counts["per_host"]}
    table = pa.concat_tables(parts)
    if ragged == "pad":
        real = table["row_mask"].to_numpy()
        assert (~real).sum() == counts["padded"] < ranks
        assert set(table.filter(~real)["id"].to_pylist()) <= {f"row-{total - 1}"}
        table = table.filter(pa.array(real))
    kept = total - counts.get("dropped", 0)
    assert table["id"].to_pylist() == [f"row-{row}" for row in range(kept)]
    assert counts["rows"] == total
    assert total - kept < ranks


def test_lists_are_tensors_and_only_named_columns_are_there(write_rows):
    source = scan(Dataset(write_rows(5), columns=["pair"], ragged="pad"))

    table = shard(source, 1, 2)

    assert table.column_names == ["pair", "row_mask"]
    assert np.stack(table["pair"].to_numpy()).tolist() == [[3, -3], [4, -4], [4, -4]]
    assert table["row_mask"].to_pylist() == [True, True, False]


def test_large_rows_are_read_in_small_pieces(write_rows, monkeypatch):
    source = scan(Dataset(write_rows(100, group=10)))
    monkeypatch.setattr(datasets, "SMALL_BYTES", sum(file.size for file in source.files) // 5)

    assert [len(part()) for part in datasets._parts(source, source.spans, 100)] == [20] * 5


@pytest.mark.parametrize(
    ("stated", "ranks", "batch", "error", "message"),
    [
        ("{uri}", 8, None, RequestError, "'train' has 7 rows for 8 hosts"),
        ({"uri": "{uri}", "ragged": "raise"}, 4, None, BatchSizeError, "7 rows: 1 for each of 4 hosts, and 3 more"),
        ({"uri": "{uri}", "ragged": "raise"}, 1, 5, BatchSizeError, "7 rows: 1 batches of 5, and 2 more"),
        ({"uri": "{uri}", "ragged": "raise"}, 7, 7, None, ""),
        ({"uri": "{uri}", "ragged": "pad"}, 8, 16, None, ""),
        ("{uri}", 4, 16, None, ""),
    ],
)
def test_what_does_not_divide_is_refused_before_a_slice_is_taken(write_rows, stated, ranks, batch, error, message):
    uri = write_rows(3, 4)
    stated = {**stated, "uri": uri} if isinstance(stated, dict) else uri

    if error is None:
        assert inputs({"train": stated}, ranks, batch)["train"].rows == 7
    else:
        with pytest.raises(error, match=message):
            inputs({"train": stated}, ranks, batch)


def test_a_dataset_without_a_row_is_refused_even_with_padding(write_rows):
    with pytest.raises(RequestError, match="'train' has no rows"):
        inputs({"train": {"uri": write_rows(0, 0), "ragged": "pad"}}, 4)


def test_an_elastic_run_that_shrinks_refuses_what_no_longer_divides(write_rows):
    found = inputs({"train": {"uri": write_rows(8), "ragged": "raise"}}, 4)

    with pytest.raises(BatchSizeError, match="2 for each of 3 hosts, and 2 more"):
        datasets.PerRank(found).configure({"train": None}, 3)


@pytest.mark.parametrize(("number", "known"), [(160, 160), ("{{ x }}", None), (None, None), (0, None), (1.5, None)])
def test_a_batch_counts_where_it_is_a_number(number, known):
    assert whole(number) == known
