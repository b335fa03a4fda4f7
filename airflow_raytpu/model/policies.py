"""Small frozen values in which an author states a policy."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from airflow_raytpu.model.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """How often to begin again, by whose fault it was.

    :param failures: restarts after the author's code raised.
    :param evictions: restarts after a preemption or a lost host, slice or head.
    """

    failures: int = 0
    evictions: int = 20

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 0:
                raise RequestError(f"RetryBudget({name}={value}) is negative.", f"Use 0 for no restarts by {name}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """When the checkpoint helper saves, and how many committed checkpoints stay.

    :param every_steps: save after each this many steps.
    :param keep: newest checkpoints that are kept.
    """

    every_steps: int = 100
    keep: int = 2

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise RequestError(f"CheckpointPolicy({name}={value}) is below 1.", f"Give {name} at least 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How a new version of a serving application replaces the one before.

    :param smoke: requests that the new version must answer on the real endpoint before it counts as healthy. Each is
        ``{"json": body, "status": 200, "path": "/", "method": "POST", "contains": "..."}``; all but one of ``json`` and
        ``path`` may be left out. A version that fails one is rolled back to the last good version.
    :param deadline: longest time for the new version to become healthy.
    """

    smoke: tuple[dict[str, Any], ...] = field(default=())
    deadline: timedelta = timedelta(minutes=20)

    def __post_init__(self) -> None:
        object.__setattr__(self, "smoke", tuple(self.smoke))
        known = {"json", "path", "method", "status", "contains"}
        for request in self.smoke:
            unknown = set(request) - known
            if unknown:
                raise RequestError(
                    f"A smoke request has the unknown keys {sorted(unknown)}.",
                    f"Known keys: {', '.join(sorted(known))}.",
                )

    def to_dict(self) -> dict[str, Any]:
        return {"smoke": [dict(request) for request in self.smoke], "deadline_s": self.deadline.total_seconds()}
