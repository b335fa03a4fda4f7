"""One host of a batch inference: its rows through the author's model, as part of one mesh over the whole slice."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_raytpu.model.errors import RowCountError, UserCodeError
from airflow_raytpu.runtime import author, checkpoints, datasets, mesh, output, relay
from airflow_raytpu.runtime.batching import PADDING, HostWork, Part, Piece
from airflow_raytpu.runtime.columns import as_arrays
from airflow_raytpu.runtime.outbox import MIN_INTERVAL_S, speak
from airflow_raytpu.runtime.spans import Span

ROW = "__row"
_INIT_S = 120


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. Survives pickling.

    :param columns: what the model is given of the input.
    :param taken: all columns of the input; a prediction of the same name would hide one.
    """

    request: str
    predict: str
    load: str | None
    model: str | None
    columns: tuple[str, ...]
    taken: tuple[str, ...]


class Scorer:
    """A Ray actor, one on each host of the slice."""

    def __init__(self, program: Program, number: int) -> None:
        speak()
        mesh.prepare()
        self._program, self._number = program, number

    def address(self) -> str:
        """Where JAX's coordinator can listen, were it this host."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def join(self, coordinator: str, workers: int, devices: int, told: Mapping[str, str]) -> None:
        """Become one of *workers* JAX processes with *devices* devices in all.

        :param told: what libtpu is told of the other hosts.
        :raises BrokenSliceError: the mesh is not whole.
        """
        import jax

        os.environ.update(told)
        if workers > 1:
            jax.distributed.initialize(coordinator, workers, self._number, initialization_timeout=_INIT_S)
        mesh.check(workers, devices)

    def leave(self) -> None:
        """Say farewell to the other processes."""
        import jax

        jax.distributed.shutdown()

    def run(self, work: HostWork, sample: Span) -> Iterator[Any]:
        """Predict all rows of *work*; by turns the number of a piece that is done, and its columns.

        The columns come as an item of their own, which the caller owns: a reference that was put here and handed over
        inside an item can be freed before the caller has counted it (Ray 2.60).

        :param sample: a row to pad with: padding of zeros might not be a row that the model can take.
        :raises AuthorError: the author's code raised.
        """
        collector = Collector(work.pieces)
        told_at = 0.0
        for rows, columns in self._predictions(work, sample):
            for number, piece in collector.add(rows, columns):
                yield number
                yield piece
            if time.time() - told_at >= MIN_INTERVAL_S:
                told_at = time.time()
                relay.publish(self._program.request, f"rows/{self._number}", {"rows": collector.rows})
        collector.close()
        relay.publish(self._program.request, f"rows/{self._number}", {"rows": collector.rows})

    def commit(self, part: Part, folder: str, pieces: Sequence[tuple[int, Any]]) -> None:
        """Write *part* with the columns of its *pieces*, by first row. See :func:`output.write`."""
        import ray

        columns = [ray.get(reference) for _, reference in sorted(pieces, key=lambda piece: piece[0])]
        names = list(columns[0]) if columns else []
        output.write(
            part,
            folder,
            {name: np.concatenate([piece[name] for piece in columns]) for name in names},
            {"request": self._program.request, "model": self._program.model},
        )

    def _predictions(self, work: HostWork, sample: Span) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """The host's rows of each batch and what was predicted of them, one batch behind the chips."""
        function, model = author.load(self._program.predict), self._model()
        run, behind = None, None
        for batch in _feed(work, sample, self._program.columns).iter_jax_batches(batch_size=work.batch):
            rows = _local(batch.pop(ROW))
            with author.quoted(function.__name__, self._where):
                if run is None:
                    model = _everywhere(model, batch)
                    run = _compile(function, model, batch, self._program.taken)
                predicted = run(model, batch)
                done = _fetch(behind)
            yield from done
            behind = rows, predicted
        with author.quoted(function.__name__, self._where):
            done = _fetch(behind)
        yield from done

    def _where(self) -> str:
        return f" on {mesh.host()}"

    def _model(self) -> Any:
        uri, load = self._program.model, self._program.load
        if load is None:
            return checkpoints.load(uri) if uri else None
        function = author.load(load)
        with author.quoted(function.__name__, self._where):
            return function(uri)


class Collector:
    """Puts predicted rows back together by piece, in whatever order they come."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = list(pieces)
        self._firsts = np.array([piece.first for piece in pieces], np.int64)
        self._parts: list[list[tuple[np.ndarray, dict[str, np.ndarray]]]] = [[] for _ in pieces]
        self._missing = [piece.span.rows for piece in pieces]
        self.rows = 0

    def add(self, rows: np.ndarray, columns: Mapping[str, np.ndarray]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Take predicted *rows*, padding among them; the pieces that are now complete, in order of their rows."""
        real = rows != PADDING
        owner = np.searchsorted(self._firsts, rows, side="right") - 1
        for number in np.unique(owner[real]):
            mine = real & (owner == number)
            self._parts[number].append((rows[mine], {name: column[mine] for name, column in columns.items()}))
            self._missing[number] -= int(mine.sum())
            self.rows += int(mine.sum())
            if not self._missing[number]:
                yield int(number), self._ordered(int(number))

    def close(self) -> None:
        """:raises RowCountError: rows are missing."""
        if any(self._missing):
            raise RowCountError(
                f"{sum(self._missing)} rows were fed and never came back, on {mesh.host()}.",
                "This is a fault of the runtime.",
            )

    def _ordered(self, number: int) -> dict[str, np.ndarray]:
        parts, self._parts[number] = self._parts[number], []
        order = np.argsort(np.concatenate([rows for rows, _ in parts]))
        return {name: np.concatenate([columns[name] for _, columns in parts])[order] for name in parts[0][1]}


def _feed(work: HostWork, sample: Span, columns: Sequence[str]) -> Any:
    """A dataset of the host's rows and its padding, each with its row number."""
    sources = [partial(_numbered, piece.span, columns, piece.first) for piece in work.pieces]
    size = sum(piece.span.size for piece in work.pieces)
    if work.padding:
        sources.append(partial(_padding, sample, columns, work.padding))
    return datasets.dataset(sources, size)


def _numbered(span: Span, columns: Sequence[str], first: int) -> pa.Table:
    table = as_arrays(span.read(columns))
    return table.append_column(ROW, pa.array(np.arange(first, first + span.rows, dtype=np.int32)))


def _padding(sample: Span, columns: Sequence[str], rows: int) -> pa.Table:
    table = as_arrays(sample.read(columns).take(pa.array(np.zeros(rows, np.int64))))
    return table.append_column(ROW, pa.array(np.full(rows, PADDING, np.int32)))


def _fetch(batch: tuple[np.ndarray, Mapping[str, Any]] | None) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """A predicted batch, brought to the host; none of none."""
    return [] if batch is None else [(batch[0], {name: _local(column) for name, column in batch[1].items()})]


def _local(array: Any) -> np.ndarray:
    """The host's rows of *array*, in their order."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def _everywhere(model: Any, batch: Mapping[str, Any]) -> Any:
    """The arrays of *model* as arrays on every device of the batch's mesh; other leaves are left as they are."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(next(iter(batch.values())).sharding.mesh, PartitionSpec())

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
            return leaf
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(place, model)


def _compile(function: Any, model: Any, batch: Mapping[str, Any], taken: Sequence[str]) -> Any:
    """*function* compiled for the mesh, its results laid out as its input is.

    :raises UserCodeError: what it returns is not one row for each row.
    """
    import jax

    leaves, tree = jax.tree.flatten(model)
    arrays = [isinstance(leaf, jax.Array) for leaf in leaves]
    fixed = [None if is_array else leaf for leaf, is_array in zip(leaves, arrays, strict=True)]

    def call(values: list[Any], rows: dict[str, Any]) -> Any:
        moving = iter(values)
        full = [next(moving) if is_array else leaf for leaf, is_array in zip(fixed, arrays, strict=True)]
        return function(jax.tree.unflatten(tree, full), rows)

    def moved(whole: Any) -> list[Any]:
        return [leaf for leaf, is_array in zip(jax.tree.leaves(whole), arrays, strict=True) if is_array]

    first = next(iter(batch.values()))
    check_prediction(function.__name__, jax.eval_shape(call, moved(model), dict(batch)), first.shape[0], taken)
    compiled = jax.jit(call, out_shardings=first.sharding)
    return lambda whole, rows: compiled(moved(whole), dict(rows))


def check_prediction(name: str, shapes: Any, rows: int, taken: Sequence[str]) -> None:
    """:raises UserCodeError: *shapes*, what *name* returns, is not a dict of columns with *rows* rows and new names."""
    lever = "Return a dict of arrays with one row for each row of the batch."
    if not isinstance(shapes, dict) or not shapes:
        raise UserCodeError(f"{name} returned a {type(shapes).__name__} where a dict of arrays is due.", lever)
    for column, shape in shapes.items():
        found = getattr(shape, "shape", None)
        if not found or found[0] != rows:
            raise UserCodeError(f"{name} returned {column!r} of shape {found} for a batch of {rows} rows.", lever)
        if column in taken:
            raise UserCodeError(
                f"{name} returned a column {column!r}, and the input has one of that name.",
                "Give the prediction another name.",
            )
