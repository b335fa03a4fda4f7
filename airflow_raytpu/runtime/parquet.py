"""Parquet files: their rows, known from their footers before any is read."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import parquet as pq

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.runtime.listing import listed, opened
from airflow_raytpu.runtime.spans import Grouped, groups_of

_FOOTER_THREADS = 16


@dataclass(frozen=True, slots=True)
class ParquetFile(Grouped):
    """See :class:`airflow_raytpu.runtime.spans.File`. A group is a row group; its size is that before compression."""

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.Table:
        """See :class:`~airflow_raytpu.runtime.spans.File`; only the row groups that hold the rows are read."""
        wanted, skipped = groups_of(self.groups, start, stop)
        with pq.ParquetFile(opened(self.root, self.name)) as file:
            table = file.read_row_groups(wanted, columns=list(columns) if columns is not None else None)
        return table.slice(skipped, stop - start)


def scan(uri: str) -> list[ParquetFile]:
    """The Parquet files that *uri* names, in order of their names: a file, a folder (with folders in it) or a glob.

    :raises PathError: there is none, or one is not Parquet.
    """
    found = listed(uri)
    names = [name for name in found.sizes if found.chosen or name.endswith(".parquet")]
    if not names:
        raise PathError(f"There is no Parquet file at {uri}.", "Give a folder, a file or a glob of *.parquet files.")
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        return list(pool.map(lambda name: footer(found.root, name), names))


def footer(root: str, name: str) -> ParquetFile:
    """:raises PathError: it is not Parquet."""
    try:
        with pq.ParquetFile(opened(root, name)) as file:
            meta = file.metadata
            groups = tuple(meta.row_group(index).num_rows for index in range(meta.num_row_groups))
            size = sum(meta.row_group(index).total_byte_size for index in range(meta.num_row_groups))
            return ParquetFile(root, name, groups, size, file.schema_arrow)
    except (pa.ArrowInvalid, OSError) as error:
        raise PathError(
            f"{root}/{name} cannot be read as Parquet: {error}", "Replace it, or move it elsewhere."
        ) from error
