"""Small frozen values in which an author states a policy."""

from __future__ import annotations

from collections.abc import Mapping
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
    """When the checkpoint helper saves, and which committed checkpoints stay. The last step is always saved.

    :param every_steps: save after each this many steps; 100 where neither trigger is given.
    :param every_seconds: save when this many seconds have passed since the save before, by the clock of rank 0.
    :param keep: newest checkpoints that are kept.
    :param best: a metric and ``"min"`` or ``"max"``: the checkpoint that is best by it is kept as well.
    :param failed_saves: saves that fail one after another until the task fails; the last save of all may never fail.
    :param longest_save: seconds after which a save is stuck, and the loop begins again from the one before.
    """

    every_steps: int | None = None
    every_seconds: float | None = None
    keep: int = 2
    best: tuple[str, str] | None = None
    failed_saves: int = 3
    longest_save: float = 600.0

    def __post_init__(self) -> None:
        if self.every_steps is None and self.every_seconds is None:
            object.__setattr__(self, "every_steps", 100)
        for name in ("every_steps", "keep", "failed_saves"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise RequestError(
                    f"CheckpointPolicy({name}={value!r}) is no whole number from 1 on.", f"Give {name} at least 1."
                )
        for name in ("every_seconds", "longest_save"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 < value < float("inf")):
                raise RequestError(f"CheckpointPolicy({name}={value!r}) is no time.", f"Give {name} in seconds.")
        if self.best is not None:
            object.__setattr__(self, "best", _metric_and_way(self.best))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CheckpointPolicy:
        """What :meth:`to_dict` gave, after JSON."""
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Which steps are traced by JAX's profiler, on the slice's first host: once in a run, as soon as a try gets there.

    :param start_step: the trace begins after this step.
    :param steps: so many steps are traced.
    """

    start_step: int = 10
    steps: int = 5

    def __post_init__(self) -> None:
        for name, least in (("start_step", 0), ("steps", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise RequestError(
                    f"Profile({name}={value!r}) is no whole number from {least} on.", f"Give {name} at least {least}."
                )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """What :meth:`to_dict` gave, after JSON."""
        return cls(**data)


def _metric_and_way(best: Any) -> tuple[str, str]:
    pair = tuple(best) if isinstance(best, list | tuple) else ()
    if len(pair) != 2 or not isinstance(pair[0], str) or pair[1] not in ("min", "max"):
        raise RequestError(
            f"CheckpointPolicy(best={best!r}) is no metric with a way.", 'Give best=("loss", "min"), or "max".'
        )
    return pair


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
