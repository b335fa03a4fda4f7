"""The author's helper for data: batches by number, so that the step is the position.

    for batch in data.batches("train", global_batch_size=160, start=step, stop=config["steps"], shuffle_seed=0):
        state, metrics = train_step(state, batch)
        step += 1
        checkpoints.step(step, state, metrics)

Batch *n* over all hosts follows from the dataset, its size, the seed and *n* alone. So a loop that begins again at its
step sees no batch twice and misses none, on as many hosts as it likes. Each checkpoint's record says where the data
stood; going on elsewhere is told.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from airflow_raytpu.model.errors import BatchSizeError, RequestError
from airflow_raytpu.runtime.columns import narrow
from airflow_raytpu.runtime.feed import Feed
from airflow_raytpu.runtime.order import PADDING, Order
from airflow_raytpu.runtime.rows import Rows
from airflow_raytpu.runtime.sources import MASK, Source

_AHEAD = 2
_LANES, _LANES_BYTES = 64, 256_000_000
_GROUPS_A_LANE = 8
"""Of what does not fit, groups that a lane has at least: its first and its last one are read twice in an epoch."""

Batch = dict[str, Any]


def batches(
    name: str,
    *,
    global_batch_size: int,
    start: int = 0,
    stop: int | None = None,
    epochs: int | None = None,
    shuffle_seed: int | None = None,
    sharding: Any = None,
) -> Iterator[Batch]:
    """Batches *start*, *start* + 1, ... of the dataset *name*, each a dict of columns.

    Without *sharding*, each host has its equal part of each batch, as NumPy arrays; with one, batches are global
    ``jax.Array`` of ``global_batch_size`` rows laid out so: a host reads only the rows that lie on its devices, and
    columns that are no numbers are left out. Where the dataset is padded, the column ``row_mask`` is false for copies.
    Rows are read ahead, beside the loop.

    :param global_batch_size: rows of a batch over all hosts.
    :param start: the number of the first batch: the steps that are done.
    :param stop: the number that is not reached, as in ``range``; with neither *stop* nor *epochs* there is no end.
    :param epochs: how often to go through the dataset, counted from batch 0.
    :param shuffle_seed: gives each epoch an order of its own; left out, rows come in the order of the files.
    :param sharding: of the batch, such as ``NamedSharding(mesh, PartitionSpec("data"))``.
    :raises RequestError: there is no such dataset, or the numbers make no sense.
    :raises BatchSizeError: the batch does not divide over the hosts or devices, or the rows into batches.
    """
    feed = _feed()
    source = feed.source(name)
    order = _order(name, source, global_batch_size, shuffle_seed)
    if start < 0 or (shuffle_seed or 0) < 0:
        raise RequestError(f"start={start} and shuffle_seed={shuffle_seed} of {name!r}.", "Neither may be negative.")
    first, last, place = _places(feed, global_batch_size, sharding)
    end = min(sys.maxsize if stop is None else stop, sys.maxsize if epochs is None else epochs * order.per_epoch)
    columns = source.columns if sharding is None else feed.numbers(name)
    rows = Rows(source.files, columns, keep=_fits(source))
    feed.begin(name, order, shuffle_seed, start)

    def make(number: int) -> Batch:
        return _filled(rows, order.numbers(number, first, last), source.ragged == "pad")

    return _stream(feed, name, range(start, end), make, place)


def _stream(
    feed: Feed, name: str, numbers: range, make: Callable[[int], Batch], place: Callable[[Batch], Batch]
) -> Iterator[Batch]:
    pool = ThreadPoolExecutor(1, thread_name_prefix=f"batches of {name}")
    try:
        ahead = deque(pool.submit(make, number) for number in numbers[:_AHEAD])
        for number in numbers:
            batch = ahead.popleft().result()
            if number + _AHEAD < numbers.stop:
                ahead.append(pool.submit(make, number + _AHEAD))
            feed.at[name] = number + 1
            yield place(batch)
    finally:
        # Whoever has left it is nowhere in it any more.
        feed.at.pop(name, None)
        pool.shutdown(wait=False, cancel_futures=True)


def _order(name: str, source: Source, batch: int, seed: int | None) -> Order:
    if batch < 1:
        raise BatchSizeError(f"global_batch_size is {batch}.", "Give it at least one row for each host.")
    blocks = [rows for file in source.files for rows in file.blocks]
    order = Order(blocks, batch, _lanes(source), seed, pad=source.ragged == "pad")
    if order.spare and source.ragged == "raise":
        raise BatchSizeError(
            f"The {order.rows:,} rows of {name!r} make {order.rows // batch:,} batches of {batch:,}, and "
            f"{order.spare:,} more (ragged='raise').",
            "Use ragged='drop' or 'pad', or another global_batch_size.",
        )
    if not order.per_epoch:
        raise BatchSizeError(
            f"The dataset {name!r} has {order.rows:,} rows and fills no batch of {batch:,}.",
            "Use ragged='pad', or a smaller global_batch_size.",
        )
    return order


def _lanes(source: Source) -> int:
    """From how many places of the dataset a shuffled batch comes: of each, a group is in memory."""
    if _fits(source):
        return _LANES
    largest = max(file.size / file.rows * max(file.groups) for file in source.files)
    groups = sum(len(file.groups) for file in source.files)
    return max(1, min(_LANES, int(_LANES_BYTES // largest), groups // _GROUPS_A_LANE))


def _fits(source: Source) -> bool:
    return sum(file.size for file in source.files) <= _LANES_BYTES


def _places(feed: Feed, batch: int, sharding: Any) -> tuple[int, int, Callable[[Batch], Batch]]:
    """Which places of a batch this host reads, and what makes its rows the batch that the author sees."""
    if sharding is None:
        if batch % feed.hosts:
            raise BatchSizeError(
                f"A batch of {batch:,} rows does not divide over {feed.hosts} hosts.",
                f"Use a multiple of {feed.hosts}.",
            )
        share = batch // feed.hosts
        return feed.rank * share, (feed.rank + 1) * share, lambda columns: columns
    try:
        parts = [index[0] for index in _fit(sharding, 1).addressable_devices_indices_map((batch,)).values()]
    except ValueError as error:
        raise BatchSizeError(
            f"A batch of {batch:,} rows does not divide over {sharding}: {error}", "Use another global_batch_size."
        ) from error
    first = min(part.start or 0 for part in parts)
    last = max(batch if part.stop is None else part.stop for part in parts)
    return first, last, lambda columns: _globally(columns, sharding, batch, first)


def _fit(sharding: Any, dimensions: int) -> Any:
    """*sharding* for an array of fewer dimensions than it names: of a label, only the rows are divided."""
    from jax.sharding import NamedSharding, PartitionSpec

    if isinstance(sharding, NamedSharding) and len(sharding.spec) > dimensions:
        return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:dimensions]))
    return sharding


def _globally(columns: Batch, sharding: Any, batch: int, first: int) -> Batch:
    """The host's rows, from place *first* on, as its part of global arrays."""
    import jax

    def on_devices(name: str, column: np.ndarray) -> Any:
        host = column if jax.config.jax_enable_x64 else narrow(column, name)

        def part(index: tuple[slice, ...]) -> np.ndarray:
            rows = slice((index[0].start or 0) - first, (batch if index[0].stop is None else index[0].stop) - first)
            return host[(rows, *index[1:])]

        return jax.make_array_from_callback((batch, *host.shape[1:]), _fit(sharding, host.ndim), part)

    return {name: on_devices(name, column) for name, column in columns.items()}


def _filled(rows: Rows, numbers: np.ndarray, masked: bool) -> Batch:
    """The rows *numbers*; padding is copies of the dataset's last row."""
    real = numbers != PADDING
    made = rows.take(np.where(real, numbers, rows.count - 1))
    return {**made, MASK: real} if masked else made


_open: list[Feed] = []


def _feed() -> Feed:
    return _open[-1] if _open else Feed({})


@contextmanager
def opened(feed: Feed) -> Iterator[Feed]:
    """Make *feed* the process's own. For the runtime, not for authors."""
    _open.append(feed)
    try:
        yield feed
    finally:
        _open.remove(feed)
