"""Parquet files and the rows in them, known from their footers: which host reads which rows, before any is read."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath

import pyarrow as pa
from pyarrow import fs
from pyarrow import parquet as pq

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.runtime import files

_FOOTER_THREADS = 16
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """One file of an input.

    :param root: URI that ``name`` is relative to.
    :param name: path below the root; what its output part is called after.
    :param groups: rows in each row group.
    :param size: bytes on disk.
    """

    root: str
    name: str
    groups: tuple[int, ...]
    size: int
    schema: pa.Schema

    @property
    def rows(self) -> int:
        return sum(self.groups)

    def span(self) -> Span:
        """All of its rows."""
        return Span(self, 0, self.rows)

    def open(self) -> pq.ParquetFile:
        filesystem, path = files.locate(self.root)
        return pq.ParquetFile(filesystem.open_input_file(_join(path, self.name)))


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``start`` up to ``stop`` of one file."""

    file: ParquetFile
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def size(self) -> float:
        """About its bytes."""
        return self.file.size * self.rows / max(self.file.rows, 1)


def scan(uri: str) -> list[ParquetFile]:
    """The Parquet files that *uri* names, in order of their names: a file, a folder (with folders in it) or a glob.

    :raises PathError: there is none, or one is not Parquet.
    """
    root, pattern = _split(uri)
    filesystem, path = files.locate(root)
    info = filesystem.get_file_info(path)
    if info.type is fs.FileType.File:
        root, _, single = root.rpartition("/")
        names, path = [_unquoted(single)], path.rpartition("/")[0]
    else:
        selector = fs.FileSelector(path, allow_not_found=True, recursive=True)
        below = [found for found in filesystem.get_file_info(selector) if found.type is fs.FileType.File]
        names = sorted(
            name for name in (found.path[len(path) :].strip("/") for found in below) if _wanted(name, pattern)
        )
    if not names:
        raise PathError(f"There is no Parquet file at {uri}.", "Give a folder, a file or a glob of *.parquet files.")
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        return list(pool.map(lambda name: _footer(filesystem, path, root, name), names))


def share(spans: Iterable[Span], first: int, last: int) -> list[Span]:
    """What holds rows *first* up to *last* of all *spans* one after the other. Pure."""
    shared, offset = [], 0
    for span in spans:
        start, stop = max(first - offset, 0), min(last - offset, span.rows)
        if start < stop:
            shared.append(Span(span.file, span.start + start, span.start + stop))
        offset += span.rows
    return shared


def chop(spans: Iterable[Span], rows: int) -> list[Span]:
    """*spans* cut where row groups begin, so that no group is read twice, in pieces of about *rows* rows. Pure."""
    pieces = []
    for span in spans:
        start = offset = 0
        start = span.start
        for group in span.file.groups:
            offset += group
            if offset >= span.stop:
                break
            if offset - start >= rows:
                pieces.append(Span(span.file, start, offset))
                start = offset
        pieces.append(Span(span.file, start, span.stop))
    return pieces


def read(span: Span, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of *span*; only the row groups that hold them are read."""
    with span.file.open() as opened:
        wanted: list[int] = []
        offset = skipped = 0
        for index, rows in enumerate(span.file.groups):
            if offset < span.stop and offset + rows > span.start:
                if not wanted:
                    skipped = span.start - offset
                wanted.append(index)
            offset += rows
        table = opened.read_row_groups(wanted, columns=list(columns) if columns is not None else None)
        return table.slice(skipped, span.rows)


def _footer(filesystem: fs.FileSystem, path: str, root: str, name: str) -> ParquetFile:
    try:
        with pq.ParquetFile(filesystem.open_input_file(_join(path, name))) as opened:
            meta = opened.metadata
            groups = tuple(meta.row_group(index).num_rows for index in range(meta.num_row_groups))
            size = sum(meta.row_group(index).total_byte_size for index in range(meta.num_row_groups))
            return ParquetFile(root, name, groups, size, opened.schema_arrow)
    except (pa.ArrowInvalid, OSError) as error:
        raise PathError(
            f"{root}/{name} cannot be read as Parquet: {error}", "Replace it, or move it elsewhere."
        ) from error


def _split(uri: str) -> tuple[str, str]:
    """A URI's folder and, where it holds wildcards, the pattern below that folder."""
    uri = uri.rstrip("/")
    match = _WILD.search(uri)
    if match is None:
        return uri, ""
    root = uri[: match.start()].rpartition("/")[0]
    return root, _unquoted(uri[len(root) + 1 :])


def _wanted(name: str, pattern: str) -> bool:
    hidden = any(part.startswith((".", "_")) for part in PurePosixPath(name).parts)
    if pattern:
        return not hidden and fnmatch.fnmatchcase(name, pattern)
    return not hidden and name.endswith(".parquet")


def _join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def _unquoted(text: str) -> str:
    from urllib.parse import unquote

    return unquote(text)
