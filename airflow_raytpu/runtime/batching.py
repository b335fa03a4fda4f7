"""Which rows go where in batch inference. Arithmetic alone: no rows are read here.

Each host feeds its own rows, in batches of the same size and the same number as every other host: a collective that one
host does not come to never ends. What is short is filled with padding rows, which carry row number -1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from airflow_raytpu.model.errors import BatchSizeError
from airflow_raytpu.runtime.parquet import ParquetFile
from airflow_raytpu.runtime.spans import Span, chop, share

PADDING = -1
"""Row number of a padding row."""

_PIECE_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Part:
    """One output file: the rows of one input file.

    :param keep: rows of the file that are predicted and written; the rest is dropped.
    """

    file: ParquetFile
    name: str
    keep: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one part that one host predicts and hands over together.

    :param first: number of its first row among the host's rows.
    """

    part: int
    span: Span
    first: int


@dataclass(frozen=True, slots=True)
class HostWork:
    """What one host feeds: its pieces, then *padding* rows, in *batches* of *batch* rows."""

    pieces: tuple[Piece, ...]
    batches: int
    batch: int

    @property
    def rows(self) -> int:
        return sum(piece.span.rows for piece in self.pieces)

    @property
    def padding(self) -> int:
        return self.batches * self.batch - self.rows


def part_name(name: str) -> str:
    """The output file for the input file *name* (its path below the input): the same for any layout and attempt."""
    return f"part-{hashlib.sha256(name.encode()).hexdigest()[:20]}.parquet"


def parts(found: Sequence[ParquetFile], batch_size: int, ragged: str) -> list[Part]:
    """The parts of an input. With ``drop``, the last rows that fill no whole batch are left out, always the same ones.

    :param batch_size: rows of a batch over all hosts.
    :raises BatchSizeError: ``raise``, and the last batch would not be full.
    """
    total = sum(file.rows for file in found)
    spare = total % batch_size
    if ragged == "raise" and spare:
        raise BatchSizeError(
            f"{total:,} rows make {total // batch_size:,} batches of {batch_size} and {spare} rows more "
            "(ragged='raise').",
            "Use ragged='pad', which masks the padding out of the output, or another batch_size.",
        )
    left = total - spare if ragged == "drop" else total
    made = []
    for file in found:
        keep = min(file.rows, left)
        left -= keep
        made.append(Part(file, part_name(file.name), keep))
    return made


def split(todo: Sequence[tuple[int, Part]], hosts: int, batch_size: int) -> list[HostWork]:
    """The rows of *todo*, parts with their numbers, over *hosts*: neighbours together, shares equal to a row."""
    kept = [Span(part.file, 0, part.keep) for _, part in todo]
    numbers = {part.file.name: number for number, part in todo}
    total = sum(span.rows for span in kept)
    bounds = [total * host // hosts for host in range(hosts + 1)]
    batch = batch_size // hosts
    most = max(stop - start for start, stop in pairwise(bounds))
    batches = -(-most // batch)
    work = []
    for start, stop in pairwise(bounds):
        pieces, first = [], 0
        for span in chop(share(kept, start, stop), _PIECE_ROWS):
            pieces.append(Piece(numbers[span.file.name], span, first))
            first += span.rows
        work.append(HostWork(tuple(pieces), batches, batch))
    return work
