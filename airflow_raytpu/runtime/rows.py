"""Rows of a dataset by their numbers, read group by group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.runtime.columns import to_numpy
from airflow_raytpu.runtime.spans import File, Span

_THREADS = 16


class Rows:
    """Random access to all rows of *files*, in their order.

    :param columns: what is read.
    :param keep: groups that were read stay in memory; else those alone that the last call needed.
    """

    def __init__(self, files: Sequence[File], columns: Sequence[str], *, keep: bool) -> None:
        self._columns, self._keep = list(columns), keep
        self._files = list(files)
        self._firsts = np.cumsum([0, *(len(file.groups) for file in files)])
        self._bounds = [np.cumsum([0, *file.groups]) for file in files]
        self._ends = np.cumsum([rows for file in files for rows in file.groups])
        self.count = int(self._ends[-1]) if len(self._ends) else 0
        self._held: dict[int, dict[str, np.ndarray]] = {}

    def take(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The rows *numbers*, in that order.

        :raises PathError: a column has not the same shape or type in all of them.
        """
        which = np.searchsorted(self._ends, numbers, side="right")
        groups, places = np.unique(which, return_inverse=True)
        self._hold([int(group) for group in groups])
        found = [self._held[int(group)] for group in groups]
        order = np.argsort(places, kind="stable")
        cuts = np.searchsorted(places[order], np.arange(len(groups) + 1))
        made = {name: self._empty(name, found, len(numbers)) for name in self._columns}
        for columns, group, (first, last) in zip(found, groups, itertools.pairwise(cuts), strict=True):
            mine = order[first:last]
            inside = numbers[mine] - (self._ends[group - 1] if group else 0)
            for name, column in columns.items():
                made[name][mine] = column[inside]
        return made

    def _hold(self, groups: Sequence[int]) -> None:
        """Have *groups* in memory."""
        if not self._keep:
            self._held = {group: self._held[group] for group in groups if group in self._held}
        missing = [group for group in groups if group not in self._held]
        if missing:
            with ThreadPoolExecutor(min(_THREADS, len(missing))) as pool:
                self._held.update(zip(missing, pool.map(self._read, missing), strict=True))

    def _read(self, group: int) -> dict[str, np.ndarray]:
        nth = int(np.searchsorted(self._firsts, group, side="right")) - 1
        start, stop = self._bounds[nth][group - self._firsts[nth] :][:2]
        table = Span(self._files[nth], int(start), int(stop)).read(self._columns)
        return {name: to_numpy(table.column(name), name) for name in self._columns}

    @staticmethod
    def _empty(name: str, found: Sequence[dict[str, np.ndarray]], count: int) -> np.ndarray:
        kinds = {(columns[name].shape[1:], columns[name].dtype) for columns in found}
        if len(kinds) > 1:
            shown = " and ".join(sorted(f"{kind} of shape {shape}" for shape, kind in kinds))
            raise PathError(
                f"The column {name!r} is not alike in all rows: {shown}.",
                "Make its lists equal, or leave the column out.",
            )
        ((shape, kind),) = kinds
        return np.empty((count, *shape), kind)
