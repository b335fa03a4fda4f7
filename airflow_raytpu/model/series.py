"""The metrics of a training run over its steps, as JSON lines in storage: one file for each attempt. Pure.

The first line is ``{"from": step}``, the least step that the attempt went on from; each other line is a :class:`Point`.
What earlier attempts told of later steps than that was done again, so the later attempt's points stand for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_raytpu.model import reading
from airflow_raytpu.model.errors import RequestError

FOLDER = "metrics"
"""Of the task's storage."""

LIMIT = 2000
"""Points that one attempt keeps at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What was told of one step.

    :param at: when, in seconds since the epoch, by the cluster's clock.
    :param rate: steps per second, lately; 0 where unknown.
    """

    step: int
    at: float
    rate: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)


class Attempt:
    """The points of one attempt: the newest, and of those before it at most *limit*, evenly over the whole.

    Where they become too many, every second one goes, and of what comes only every second (fourth, ...) one is kept.

    :param text: its file, where it was begun before. Lines that cannot be read are left aside.
    """

    def __init__(self, text: str = "", limit: int = LIMIT) -> None:
        self._limit, self._every, self._skipped = limit, 1, 0
        self._from: int | None = None
        self._kept: list[Point] = []
        self._newest: Point | None = None
        for line in text.splitlines():
            self._read(line)

    @property
    def began(self) -> int:
        return self._from or 0

    @property
    def points(self) -> list[Point]:
        return [*self._kept, *([self._newest] if self._newest else [])]

    def begin(self, step: int) -> None:
        """A try goes on from *step*: what was told of later ones is done again."""
        self._from = step if self._from is None else min(self._from, step)
        self._kept = [point for point in self._kept if point.step <= step]
        if self._newest and self._newest.step > step:
            self._newest = None

    def add(self, point: Point) -> None:
        """What was told of one more step, or more of the same one."""
        last = self._newest
        if last and point.step > last.step:
            self._skipped += 1
            if self._skipped >= self._every:
                self._kept.append(last)
                self._skipped = 0
            if len(self._kept) > self._limit:
                self._kept, self._every = self._kept[::2], self._every * 2
        self._newest = point

    def text(self) -> str:
        """Its file."""
        lines = [{"from": self.began}, *map(asdict, self.points)]
        return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)

    def _read(self, line: str) -> None:
        try:
            found = json.loads(line)
            if isinstance(found, dict) and isinstance(found.get("from"), int):
                self.begin(found["from"])
            else:
                self.add(reading.newer("point", Point, found))
        except (RequestError, ValueError):
            return  # somebody else's, or a bad disk's: a gap in a picture


def merged(attempts: Iterable[Attempt]) -> list[Point]:
    """The points of a run from those of its *attempts*, the oldest first: each step once, and in order."""
    points: list[Point] = []
    for attempt in attempts:
        points = [point for point in points if point.step <= attempt.began] + attempt.points
    return points


def name(attempt: int) -> str:
    """The file's name."""
    return f"{attempt}.jsonl"


def number(file: str) -> int | None:
    """The attempt whose file is called *file*, ``None`` where it is none."""
    stem, _, suffix = file.partition(".")
    return int(stem) if suffix == "jsonl" and stem.isdigit() else None


def of_files(files: Mapping[str, str]) -> list[Point]:
    """:func:`merged`, from the text of each file by its name."""
    known: dict[int, Any] = {attempt: files[file] for file in files if (attempt := number(file)) is not None}
    return merged(Attempt(known[attempt], limit=len(known[attempt])) for attempt in sorted(known))
