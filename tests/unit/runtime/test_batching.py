"""Rows out are rows in, and every host comes to every batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.model.errors import BatchSizeError
from airflow_raytpu.runtime.batching import Part, part_name, parts, split
from airflow_raytpu.runtime.parquet import ParquetFile


def make(*rows):
    return [ParquetFile("file:///x", f"f{index:02d}.parquet", (count,), 100, None) for index, count in enumerate(rows)]


def todo_of(made):
    return [(number, part) for number, part in enumerate(made) if part.keep]


@given(
    rows=st.lists(st.integers(0, 200), min_size=1, max_size=6),
    hosts=st.integers(1, 8),
    per_host=st.integers(1, 40),
    skipped=st.sets(st.integers(0, 5)),
)
def test_every_row_is_predicted_once_and_every_host_has_as_many_batches(rows, hosts, per_host, skipped):
    made = parts(make(*rows), hosts * per_host, "pad")
    todo = [(number, part) for number, part in todo_of(made) if number not in skipped]

    work = split(todo, hosts, hosts * per_host)

    fed = [
        (piece.part, row) for host in work for piece in host.pieces for row in range(piece.span.start, piece.span.stop)
    ]
    assert fed == [(number, row) for number, part in todo for row in range(part.keep)]
    assert len({(host.batches, host.batch) for host in work}) == 1
    assert all(host.padding >= 0 for host in work)
    assert max(host.rows for host in work) - min(host.rows for host in work) <= 1
    assert max(host.padding for host in work) <= per_host
    for host in work:
        assert [piece.first for piece in host.pieces] == [
            sum(earlier.span.rows for earlier in host.pieces[:index]) for index in range(len(host.pieces))
        ]


@given(rows=st.lists(st.integers(0, 200), min_size=1, max_size=6), batch=st.integers(1, 90))
def test_drop_leaves_out_the_last_rows_that_fill_no_batch(rows, batch):
    made = parts(make(*rows), batch, "drop")

    kept = sum(part.keep for part in made)
    assert kept == sum(rows) // batch * batch
    cut = [index for index, part in enumerate(made) if part.keep < part.file.rows]
    assert all(part.keep == 0 for part in (made[cut[0] + 1 :] if cut else []))


def test_raise_says_so_before_the_first_batch():
    with pytest.raises(BatchSizeError, match="357 rows make 5 batches of 64 and 37 rows more"):
        parts(make(200, 157), 64, "raise")

    assert [part.keep for part in parts(make(200, 56), 64, "raise")] == [200, 56]


def test_what_is_dropped_does_not_depend_on_what_is_left_to_do():
    first, again = parts(make(100, 100), 64, "drop"), parts(make(100, 100), 64, "drop")

    assert first == again
    assert [part.keep for part in first] == [100, 92]


def test_a_part_is_named_after_its_input_alone():
    assert part_name("a/b.parquet") == part_name("a/b.parquet")
    assert part_name("a/b.parquet") != part_name("a_b.parquet")
    assert part_name("x").startswith("part-")
    assert part_name("x").endswith(".parquet")


def test_fewer_rows_than_hosts():
    work = split([(0, Part(make(2)[0], "p", 2))], 4, 16)

    assert [(host.rows, host.padding, host.batches) for host in work] == [(0, 4, 1), (1, 3, 1), (0, 4, 1), (1, 3, 1)]
