"""Ray Data over the files of a dataset: fixed rows for each rank, in a fixed order, list columns as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from ray.train import DataConfig

from airflow_raytpu.model.datasets import Dataset as Stated
from airflow_raytpu.model.errors import BatchSizeError, RequestError
from airflow_raytpu.runtime.columns import as_tensors
from airflow_raytpu.runtime.sources import MASK, Source, scan
from airflow_raytpu.runtime.spans import Span, chop, share

if TYPE_CHECKING:
    from ray.data import DataIterator, Dataset

SMALL_BYTES = 64_000_000
"""Below this much data, a process reads its rows itself: starting Ray's read tasks would take longer than reading."""

_PIECE_ROWS = 65_536


class PerRank(DataConfig):  # type: ignore[misc]
    """Gives each rank its own rows of each dataset: the same rows, in the same order, in every attempt.

    Ray's own split hands out blocks as they come, so a resumed run would see rows twice and miss others. Shares are
    equal, as SPMD needs: the last ``rows % ranks`` rows of a dataset are left out, or the last shares filled up.
    """

    def __init__(self, inputs: Mapping[str, Source]) -> None:
        super().__init__()
        self._inputs = dict(inputs)

    def configure(
        self, datasets: Mapping[str, Dataset], world_size: int, *_: Any, **__: Any
    ) -> list[dict[str, DataIterator]]:
        """One iterator for each rank and dataset."""
        return [
            {name: _rank(name, self._inputs[name], rank, world_size).iterator() for name in datasets}
            for rank in range(world_size)
        ]


def inputs(stated: Mapping[str, Any], ranks: int, batch: int | None = None) -> dict[str, Source]:
    """What each dataset is made of.

    :param batch: rows of a batch over all ranks, where that is known.
    :raises PathError: there are no such files.
    :raises RequestError: fewer rows than ranks, and no padding.
    :raises BatchSizeError: ``ragged="raise"``, and the rows make no equal parts.
    """
    found = {name: scan(Stated.of(each)) for name, each in stated.items()}
    for name, source in found.items():
        if not source.rows:
            raise RequestError(f"The dataset {name!r} has no rows.", "See that the task that writes it ran before.")
        if source.rows < ranks and source.ragged != "pad":
            raise RequestError(
                f"The dataset {name!r} has {source.rows} rows for {ranks} hosts.",
                "Give at least a row to each host, or fill up: Dataset(..., ragged='pad').",
            )
        shares(name, source, ranks)
        full, spare = divmod(source.rows, batch or source.rows)
        if batch and spare and source.ragged == "raise":
            raise _ragged(name, source.rows, f"{full:,} batches of {batch:,}", spare)
    return found


def shares(name: str, source: Source, ranks: int) -> dict[str, int]:
    """What :class:`PerRank` makes of the rows.

    :raises BatchSizeError: ``ragged="raise"``, and they make no equal parts.
    """
    per_host, spare = divmod(source.rows, ranks)
    if spare and source.ragged == "raise":
        raise _ragged(name, source.rows, f"{per_host:,} for each of {ranks} hosts", spare)
    if source.ragged != "pad":
        return {"rows": source.rows, "per_host": per_host, "dropped": spare}
    return {"rows": source.rows, "per_host": -(-source.rows // ranks), "padded": -source.rows % ranks}


def _ragged(name: str, rows: int, parts: str, spare: int) -> BatchSizeError:
    return BatchSizeError(
        f"The dataset {name!r} has {rows:,} rows: {parts}, and {spare:,} more (ragged='raise').",
        "Use ragged='drop' or 'pad', or another number of rows.",
    )


def whole(number: Any) -> int | None:
    """*number* where it is a whole one above 0: of what the author's config calls so, nothing more is known."""
    return number if isinstance(number, int) and number > 0 else None


def dataset(sources: Sequence[Callable[[], pa.Table]], size: float) -> Dataset:
    """A dataset of what *sources* return, in their order.

    :param size: about how many bytes that is.
    """
    import ray.data

    # Also where a dataset runs on another process's behalf: progress bars would fill the job's log.
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # Ray Data's own error for what a source raised loses it on its way to another process (2.60).
    context.raise_original_map_exception = True
    if size <= SMALL_BYTES:
        # from_arrow would start a worker process only to count the rows.
        return ray.data.from_blocks([pa.concat_tables([source() for source in sources])])
    made = ray.data.from_items([{"source": index} for index in range(len(sources))], override_num_blocks=len(sources))
    made.context.execution_options.preserve_order = True
    return made.map_batches(_Reader(sources), batch_size=1, batch_format="numpy")


class _Reader:
    """Calls one source. An object, because Ray Data names its operators after the class."""

    def __init__(self, sources: Sequence[Callable[[], pa.Table]]) -> None:
        self._sources = list(sources)

    def __call__(self, batch: dict[str, Any]) -> pa.Table:
        return self._sources[int(batch["source"][0])]()


def _rank(name: str, source: Source, rank: int, ranks: int) -> Dataset:
    rows = shares(name, source, ranks)["per_host"]
    spans = share(source.spans, rank * rows, (rank + 1) * rows)
    size = sum(span.size for span in spans)
    return dataset(list(_parts(source, spans, rows)), size)


def _parts(source: Source, spans: Sequence[Span], rows: int) -> Iterator[Callable[[], pa.Table]]:
    """What reads *spans*, piece by piece, and then the copies that are missing to *rows*."""
    masked = source.ragged == "pad"
    have, size = sum(span.rows for span in spans), sum(span.size for span in spans)
    # Of images, far fewer rows than of numbers are a piece.
    piece = max(1, min(_PIECE_ROWS, int(have * SMALL_BYTES / max(size, 1))))
    for span in chop(spans, piece):
        yield partial(rows_of, span, source.columns, masked=masked)
    if have < rows:
        last = source.files[-1]
        yield partial(_copies, Span(last, last.rows - 1, last.rows), source.columns, rows - have)


def rows_of(span: Span, columns: Sequence[str], *, masked: bool) -> pa.Table:
    """The rows of *span*, list columns as tensors."""
    table = as_tensors(span.read(columns).select(list(columns)))
    return table.append_column(MASK, pa.array(np.ones(len(table), bool))) if masked else table


def _copies(row: Span, columns: Sequence[str], count: int) -> pa.Table:
    table = row.read(columns).select(list(columns)).take(pa.array(np.zeros(count, np.int64)))
    return as_tensors(table).append_column(MASK, pa.array(np.zeros(count, bool)))
