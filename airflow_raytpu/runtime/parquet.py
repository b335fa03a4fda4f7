"""Parquet files: their rows, known from their footers before any is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import parquet as pq

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.runtime.listing import Kind, listed, opened
from airflow_raytpu.runtime.spans import Grouped, groups_of

FOOTER_THREADS = 16
"""So many files are opened at once: in a bucket, each takes several round trips."""


class NoParquetError(PathError):
    """There is no such file, or it is not Parquet."""


_KIND = Kind("Parquet", "Replace it, or move it elsewhere.", NoParquetError)


@dataclass(frozen=True, slots=True)
class ParquetFile(Grouped):
    """See :class:`airflow_raytpu.runtime.spans.File`. A group is a row group; its size is that before compression."""

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.Table:
        """See :class:`~airflow_raytpu.runtime.spans.File`; only the row groups that hold the rows are read."""
        wanted, skipped = groups_of(self.groups, start, stop)
        with reading(self.root, self.name) as file:
            table = file.read_row_groups(wanted, columns=list(columns) if columns is not None else None)
        return table.slice(skipped, stop - start)


def scan(uri: str) -> list[ParquetFile]:
    """The Parquet files that *uri* names, in order of their names: a file, a folder (with folders in it) or a glob.

    :raises PathError: there is none, or one is not Parquet, or may not be read.
    :raises SilentError: its bucket did not answer in time.
    """
    found = listed(uri)
    names = [name for name in found.sizes if found.chosen or name.endswith(".parquet")]
    if not names:
        raise PathError(f"There is no Parquet file at {uri}.", "Give a folder, a file or a glob of *.parquet files.")
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        return list(pool.map(lambda name: footer(found.root, name), names))


def footer(root: str, name: str) -> ParquetFile:
    """See :func:`reading`."""
    with reading(root, name) as file:
        meta = file.metadata
        groups = tuple(meta.row_group(index).num_rows for index in range(meta.num_row_groups))
        size = sum(meta.row_group(index).total_byte_size for index in range(meta.num_row_groups))
        return ParquetFile(root, name, groups, size, file.schema_arrow)


@contextmanager
def reading(root: str, name: str) -> Iterator[pq.ParquetFile]:
    """The Parquet file *name* below *root*, open.

    :raises NoParquetError: it is not there, or not Parquet.
    :raises PathError: it may not be read.
    :raises SilentError: its bucket did not answer in time.
    """
    with opened(root, name, _KIND) as stream, pq.ParquetFile(stream) as file:
        yield file
