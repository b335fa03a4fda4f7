"""What one worker knows of its run's datasets: what they are, where the loop is in them, and where it should be."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.runtime.columns import is_numeric
from airflow_raytpu.runtime.order import Order
from airflow_raytpu.runtime.sources import Source

log = logging.getLogger(__name__)


@dataclass
class Feed:
    """One a process, opened by the runtime around the author's loop.

    :param restored: where the data stood when the checkpoint was saved that the loop goes on from; empty for none.
    :ivar at: by dataset that is gone through, the number of the batch that comes next.
    :ivar used: by dataset, what became of its rows, as the task's result says it.
    """

    sources: Mapping[str, Source]
    rank: int = 0
    hosts: int = 1
    restored: Mapping[str, Any] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    used: dict[str, dict[str, int]] = field(default_factory=dict)
    _orders: dict[str, tuple[Order, int | None]] = field(default_factory=dict)

    def source(self, name: str) -> Source:
        found = self.sources.get(name)
        if found is None:
            known = ", ".join(map(repr, self.sources)) or "none"
            raise RequestError(
                f"There is no dataset {name!r} here, but {known}.",
                f'Give the operator datasets={{"{name}": ...}}. Outside of a training task there are none.',
            )
        return found

    def numbers(self, name: str) -> list[str]:
        """The columns that can go to a device.

        :raises RequestError: there is none.
        """
        source = self.source(name)
        kinds = {each: source.files[0].schema.field(each).type for each in source.columns}
        found = [each for each, kind in kinds.items() if is_numeric(kind) or isinstance(kind, pa.BaseExtensionType)]
        left = sorted(set(kinds) - set(found))
        if not found:
            raise RequestError(
                f"{name!r} has no column of numbers, but {', '.join(left)}.",
                "Leave sharding out, and make numbers of them in the loop.",
            )
        if left and self._tells(name):
            log.info("batches of %r: not on devices, as they are no numbers: %s", name, ", ".join(left))
        return found

    def begin(self, name: str, order: Order, seed: int | None, start: int) -> None:
        """The loop goes through *name* from batch *start* on: tell what becomes of its rows, and what has changed."""
        told, self._orders[name] = not self._tells(name), (order, seed)
        left = "padded" if order.per_epoch * order.batch > order.rows else "dropped"
        spare = abs(order.per_epoch * order.batch - order.rows)
        batches = {"global_batch_size": order.batch, "batches_per_epoch": order.per_epoch}
        self.used[name] = {"rows": order.rows, **batches, f"{left}_per_epoch": spare}
        if told:
            return
        log.info(
            "batches of %r: %d an epoch, of %d of its %d rows each; %d rows an epoch are %s; from batch %d on",
            name, order.per_epoch, order.batch, order.rows, spare, left, start,
        )  # fmt: skip
        for warning in self._differences(name, start):
            log.warning("%s", warning)

    def _tells(self, name: str) -> bool:
        """Whether something is to be said of *name*: by one rank, the first time."""
        return self.rank == 0 and name not in self._orders

    def position(self) -> dict[str, Any]:
        """Where the data stands, as a checkpoint's record says it."""
        return {name: self._position(name, number) for name, number in self.at.items()}

    def _position(self, name: str, number: int) -> dict[str, Any]:
        order, seed = self._orders[name]
        return {
            "next_batch": number,
            "rows_seen": order.seen(number),
            "global_batch_size": order.batch,
            "shuffle_seed": seed,
            "rows": order.rows,
            "files": self.sources[name].fingerprint,
        }

    def _differences(self, name: str, start: int) -> Iterator[str]:
        """What differs from the record, and what follows from it."""
        was = self.restored.get(name)
        if was is None:
            return
        now = self._position(name, start)
        if was["files"] != now["files"]:
            yield (
                f"The files of {name!r} are not those of the checkpoint ({was['rows']:,} rows then, {now['rows']:,} "
                "now): rows may be seen twice or missed in this epoch."
            )
        if was["shuffle_seed"] != now["shuffle_seed"]:
            yield (
                f"The shuffle_seed of {name!r} is {now['shuffle_seed']} and was {was['shuffle_seed']}: "
                "rows may be seen twice or missed in this epoch."
            )
        if was["global_batch_size"] != now["global_batch_size"]:
            yield (
                f"The global_batch_size of {name!r} is {now['global_batch_size']} and was {was['global_batch_size']}: "
                f"the checkpoint has seen {was['rows_seen']:,} rows, and the loop goes on after {now['rows_seen']:,}."
            )
        elif was["next_batch"] != start:
            what = "seen again" if start < was["next_batch"] else "never seen"
            yield (
                f"The loop begins at batch {start:,} of {name!r} and stood at batch {was['next_batch']:,} when the "
                f"checkpoint was saved: what lies between is {what}. Pass start= the steps that are done."
            )
