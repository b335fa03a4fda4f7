"""Rows known from footers, read where they are."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.buckets import RefusedError, SilentError
from airflow_raytpu.runtime.parquet import NoParquetError, ParquetFile, footer, scan
from airflow_raytpu.runtime.spans import Span, chop, share


def ids(spans):
    return [name for span in spans for name in span.read()["id"].to_pylist()]


def test_a_folder_a_file_and_a_glob(write_rows, tmp_path):
    folder = write_rows(3, 5)
    (tmp_path / "input" / "sub").mkdir()
    (tmp_path / "input" / "f01.parquet").rename(tmp_path / "input" / "sub" / "f01.parquet")
    (tmp_path / "input" / "_SUCCESS").write_text("")
    (tmp_path / "input" / ".hidden.parquet").write_text("")

    assert [(file.name, file.rows) for file in scan(folder)] == [("f00.parquet", 3), ("sub/f01.parquet", 5)]
    assert [(file.name, file.rows) for file in scan(folder + "/")] == [("f00.parquet", 3), ("sub/f01.parquet", 5)]
    assert [(file.name, file.rows) for file in scan(f"{folder}/f00.parquet")] == [("f00.parquet", 3)]
    assert [(file.name, file.rows) for file in scan(f"{folder}/s*/*.parquet")] == [("sub/f01.parquet", 5)]


def test_nothing_there(tmp_path):
    with pytest.raises(PathError, match="There is no Parquet file at"):
        scan((tmp_path / "nowhere").as_uri())


def test_something_else_there(tmp_path):
    (tmp_path / "x.parquet").write_text("no")

    with pytest.raises(PathError, match=r"x\.parquet cannot be read as Parquet"):
        scan(tmp_path.as_uri())


def test_a_part_that_is_not_there_is_no_parquet(tmp_path):
    with pytest.raises(NoParquetError, match=r"nowhere\.parquet cannot be read as Parquet"):
        footer(tmp_path.as_uri(), "nowhere.parquet")


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        (OSError("google::cloud::Status(UNAVAILABLE: try later)"), SilentError),
        (PermissionError(13, "google::cloud::Status(PERMISSION_DENIED: no right)"), RefusedError),
        (PermissionError(13, "no right"), PathError),
    ],
)
def test_a_place_that_cannot_be_listed(why, kind, monkeypatch):
    def refuse(_):
        raise why

    monkeypatch.setattr(files, "locate", lambda uri: (SimpleNamespace(get_file_info=refuse), "runs/in"))

    with pytest.raises(kind, match=r"^gs://runs/in could not be read: .*(try later|no right)") as caught:
        scan("gs://runs/in")
    assert type(caught.value) is kind


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (0, 3), (3, 4), (2, 9), (9, 10)])
def test_a_span_reads_its_rows_alone(write_rows, start, stop):
    (file,) = scan(write_rows(10, group=4))

    assert ids([Span(file, start, stop)]) == [f"row-{row}" for row in range(start, stop)]
    assert file.groups == (4, 4, 2)


def test_shares_and_pieces_keep_the_order(write_rows):
    spans = [Span(file, 0, file.rows) for file in scan(write_rows(5, 0, 7, 9, group=2))]
    halves = [share(spans, 0, 10), share(spans, 10, 21)]

    assert [name for half in halves for name in ids(chop(half, 3))] == [f"row-{row}" for row in range(21)]


@given(
    rows=st.lists(st.lists(st.integers(1, 9), max_size=4), max_size=5),
    cut=st.integers(0, 60),
    piece=st.integers(1, 12),
)
def test_no_row_is_lost_or_doubled(rows, cut, piece):
    files = [ParquetFile("file:///x", f"{index}", tuple(groups), 0, None) for index, groups in enumerate(rows)]
    total = sum(file.rows for file in files)
    spans = [Span(file, 0, file.rows) for file in files]
    pieces = chop(share(spans, 0, cut), piece) + chop(share(spans, cut, total), piece)

    found = [(piece.file.name, row) for piece in pieces for row in range(piece.start, piece.stop)]
    if cut > total:
        found = found[:total]
    assert found == [(file.name, row) for file in files for row in range(file.rows)]
