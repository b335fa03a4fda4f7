"""Arrow IPC files, Feather (version 2) among them: their rows, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import ipc

from airflow_raytpu.runtime.listing import Kind, opened
from airflow_raytpu.runtime.spans import Grouped, groups_of

_KIND = Kind("an Arrow IPC file", "Replace it, or write it anew as an IPC file (pyarrow.feather.write_feather).")


@dataclass(frozen=True, slots=True)
class ArrowFile(Grouped):
    """See :class:`airflow_raytpu.runtime.spans.File`. A group is a record batch."""

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.Table:
        """See :class:`airflow_raytpu.runtime.spans.File`; only the batches that hold the rows are read."""
        wanted, skipped = groups_of(self.groups, start, stop)
        names = self.schema.names if columns is None else list(columns)
        with _open(self.root, self.name, [self.schema.get_field_index(name) for name in names]) as file:
            table = pa.Table.from_batches([file.get_batch(index) for index in wanted])
        return table.select(names).slice(skipped, stop - start)


def footer(root: str, name: str, size: int) -> ArrowFile:
    """The file, its rows counted from what describes its batches.

    :param size: its bytes.
    :raises PathError: it is no IPC file: a stream has no footer, and an old Feather file another one.
    :raises SilentError: its bucket did not answer in time.
    """
    with _open(root, name) as file:
        schema = file.schema
    # The narrowest column is enough to learn how long the batches are: nothing else of them is read.
    narrow = min(range(len(schema)), key=lambda index: _width(schema.field(index).type), default=None)
    with _open(root, name, None if narrow is None else [narrow]) as file:
        groups = tuple(file.get_batch(index).num_rows for index in range(file.num_record_batches))
    return ArrowFile(root, name, groups, size, schema)


@contextmanager
def _open(root: str, name: str, fields: list[int] | None = None) -> Iterator[ipc.RecordBatchFileReader]:
    options = ipc.IpcReadOptions(included_fields=fields)
    with opened(root, name, _KIND) as stream, ipc.open_file(stream, options=options) as file:
        yield file


def _width(kind: pa.DataType) -> int:
    try:
        return int(kind.bit_width)
    except ValueError:
        return 1 << 32
