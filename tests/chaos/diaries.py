"""What the programs wrote down themselves, and whether their processes live: nothing of the provider is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_AT_ONCE_S = 0.1
"""Clocks of two processes of one machine agree, and lines are written within this time."""


@dataclass(frozen=True, slots=True)
class Start:
    """One process of a program: its lines, each with ``what`` and ``at``."""

    lines: tuple[dict[str, Any], ...]

    @property
    def pid(self) -> int:
        return int(self.lines[0]["pid"])

    @property
    def began(self) -> float:
        return float(self.lines[0]["at"])

    @property
    def last_at(self) -> float:
        return float(self.lines[-1]["at"])

    @property
    def node(self) -> str:
        return str(self.lines[0]["node"])

    @property
    def steps(self) -> list[tuple[int, float]]:
        return [(line["step"], line["at"]) for line in self.lines if line["what"] == "step"]

    @property
    def step(self) -> int:
        return max((step for step, _ in self.steps), default=0)

    @property
    def done(self) -> bool:
        return self.lines[-1]["what"] == "end"

    def alive(self) -> bool:
        """Whether its process is there, and is no zombie."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        return fields[0] not in {"Z", "X"} and fields[19] == self.lines[0]["tick"]


def read(folder: Path) -> list[Start]:
    """Every start that wrote into *folder*, the first one first."""
    found = [_lines(path) for path in folder.glob("*.jsonl")]
    return sorted((Start(tuple(lines)) for lines in found if lines), key=lambda start: start.began)


def overlaps(starts: Sequence[Start]) -> list[str]:
    """Pairs of starts that worked at the same time."""
    return [
        f"pid {one.pid} worked until {one.last_at:.1f}, pid {other.pid} since {other.began:.1f}"
        for number, one in enumerate(starts)
        for other in starts[number + 1 :]
        if one.last_at > other.began + _AT_ONCE_S
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    # The last line of a process that was killed in the middle of it may be cut off.
    whole = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]
