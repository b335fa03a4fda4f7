"""One measured value and how it is told."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure.

    :param goal: largest value that holds.
    :param a_a_ratio: the same thing measured twice; 1.0 on a quiet machine.
    """

    id: str
    what: str
    value: float
    unit: str
    goal: float
    a_a_ratio: float
    rounds: int

    @property
    def holds(self) -> bool:
        return self.value <= self.goal

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "goal": self.goal,
            "holds": self.holds,
            "a_a_ratio": self.a_a_ratio,
            "rounds": self.rounds,
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def times(work: Callable[[], object], rounds: int) -> list[float]:
    """Seconds of each of *rounds* calls of *work*."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found


def a_a_ratio(measured: Sequence[float]) -> float:
    """The median of every other value over the median of the rest."""
    return round(statistics.median(measured[::2]) / statistics.median(measured[1::2]), 3)


def commit() -> str:
    """The short commit, with a plus where the tree differs from it; empty outside a clone."""
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=here, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
