"""Rows by their numbers, in files whose rows are counted: what is to be read where, before any row is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


class File(Protocol):
    """A file with rows. It survives pickling.

    :ivar groups: rows in each part that is read as a whole.
    :ivar blocks: rows in each part that may be read in any order; one or more whole groups.
    :ivar size: about its bytes in memory; of the same file always the same number.
    """

    @property
    def root(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def groups(self) -> Sequence[int]: ...
    @property
    def blocks(self) -> Sequence[int]: ...
    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def schema(self) -> pa.Schema: ...
    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows *start* up to *stop*."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """A file whose groups may be read in any order: what every such :class:`File` has but ``read``.

    :param root: URI that ``name`` is relative to.
    :param name: path below the root; what its output part is called after.
    """

    root: str
    name: str
    groups: tuple[int, ...]
    size: int
    schema: pa.Schema

    @property
    def rows(self) -> int:
        return sum(self.groups)

    @property
    def blocks(self) -> tuple[int, ...]:
        return self.groups


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``start`` up to ``stop`` of one file."""

    file: File
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def size(self) -> float:
        """About its bytes."""
        return self.file.size * self.rows / max(self.file.rows, 1)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        return self.file.read(self.start, self.stop, columns)


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


def groups_of(groups: Sequence[int], start: int, stop: int) -> tuple[list[int], int]:
    """Which of *groups*, given by their rows, hold rows *start* up to *stop*, and how many rows are before those."""
    wanted: list[int] = []
    offset = skipped = 0
    for index, rows in enumerate(groups):
        if offset < stop and offset + rows > start:
            if not wanted:
                skipped = start - offset
            wanted.append(index)
        offset += rows
    return wanted, skipped
