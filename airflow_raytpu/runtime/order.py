"""Which rows are in which batch: arithmetic alone, and the same on every host, however many there are.

Shuffled, the blocks of an epoch come in a random order, and the rows of each block in a random order. Each batch then
takes equal runs from several places of that sequence at once, its lanes: so it mixes rows of many blocks, and yet each
block is in use only for a while. The lanes follow from the batch and the files, never from the hosts; where the hosts
divide them, hardly a block is read by two hosts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PADDING = -1
"""Number of a row that is none."""


class Order:
    """The rows of each batch, by their numbers in the dataset.

    :param blocks: rows in each part of the dataset that are read together.
    :param batch: rows of a batch over all hosts.
    :param lanes: at most how many blocks a batch is made of, where it is shuffled.
    :param seed: of the shuffle; ``None`` keeps the dataset's own order.
    :param pad: the rows that fill no whole batch make one with padding; else they are left out.
    """

    def __init__(self, blocks: Sequence[int], batch: int, lanes: int, seed: int | None, *, pad: bool) -> None:
        self._sizes = np.asarray(blocks, np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.rows, self.batch, self._seed = int(self._sizes.sum()), batch, seed
        self._full, self.spare = divmod(self.rows, batch)
        self.per_epoch = self._full + (1 if pad and self.spare else 0)
        self._lanes = 1 if seed is None else next(n for n in range(min(lanes, batch), 0, -1) if batch % n == 0)
        self._epoch: tuple[int, np.ndarray, np.ndarray] | None = None
        self._inside: dict[tuple[int, int], np.ndarray] = {}

    def numbers(self, number: int, first: int, last: int) -> np.ndarray:
        """The rows at places *first* up to *last* of batch *number*, :data:`PADDING` where there is none."""
        epoch, nth = divmod(number, self.per_epoch)
        places = np.arange(first, last)
        if nth == self._full:
            at = nth * self.batch + places
        else:
            run = self.batch // self._lanes
            lane, inside = np.divmod(places, run)
            # Each lane begins elsewhere in itself: else all would come to the end of their blocks at once.
            turned = (nth + lane * self._full // self._lanes) % self._full
            at = (lane * self._full + turned) * run + inside
        found = np.full(len(at), PADDING)
        real = at < self.rows
        found[real] = at[real] if self._seed is None else self._shuffled(epoch, at[real])
        return found

    def seen(self, batches: int) -> int:
        """Rows in the first *batches* batches, a row of two epochs counted twice."""
        epochs, rest = divmod(batches, self.per_epoch)
        whole = self._full * self.batch + (self.spare if self.per_epoch > self._full else 0)
        return epochs * whole + rest * self.batch

    def _shuffled(self, epoch: int, at: np.ndarray) -> np.ndarray:
        """The rows at places *at* of the epoch's sequence."""
        if self._epoch is None or self._epoch[0] != epoch:
            order = self._permutation(len(self._sizes), epoch)
            self._epoch = (epoch, order, np.cumsum(self._sizes[order]))
        _, order, ends = self._epoch
        which = np.searchsorted(ends, at, side="right")
        found, used = np.empty_like(at), {}
        for nth in np.unique(which):
            block, mine = int(order[nth]), which == nth
            key = (epoch, block)
            inside = self._inside.get(key)
            if inside is None:
                inside = self._permutation(int(self._sizes[block]), epoch, block)
            used[key] = inside
            found[mine] = self._starts[block] + inside[at[mine] - (ends[nth] - self._sizes[block])]
        # A block is used by some batches one after the other, and then no more.
        self._inside = used
        return found

    def _permutation(self, count: int, *of: int) -> np.ndarray:
        # Of raw numbers, whose sequence NumPy promises to keep; that of its permutation() it does not.
        seed = np.random.SeedSequence(self._seed or 0, spawn_key=of)
        return np.argsort(np.random.Philox(seed).random_raw(count), kind="stable")
