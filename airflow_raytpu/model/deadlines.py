"""The four limits on waiting, as the author states them and as moments in time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import Any

from airflow_raytpu.model.errors import DeadlineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long to wait for what. No wait is unbounded.

    :param slice_wait: from the request to a whole slice: queueing and provisioning.
    :param start: from the slice to the first training step, row or healthy replica.
    :param stall: longest time with no progress after that.
    :param total: from the request to the end, whatever happens.
    A limit that is left at its default ends with ``total`` where that is shorter.

    :raises DeadlineError: a limit is not positive, or ``total`` is shorter than another limit.
    """

    slice_wait: timedelta = timedelta(hours=1)
    start: timedelta = timedelta(minutes=20)
    stall: timedelta = timedelta(minutes=15)
    total: timedelta = timedelta(hours=24)

    def __post_init__(self) -> None:
        for name, value in self._items():
            if value <= timedelta(0):
                raise DeadlineError(
                    f"{name} is {value}, which leaves no time at all.", f"Give {name} a positive duration."
                )
            if value <= self.total:
                continue
            if value != _DEFAULTS[name]:
                raise DeadlineError(
                    f"{name} is {value} but total is {self.total}, so {name} could never be reached.",
                    f"Raise total above {value} or lower {name}.",
                )
            object.__setattr__(self, name, self.total)

    def since(self, now: float) -> Limits:
        """The limits for a request made at *now* (seconds since the epoch)."""
        return Limits(asked_at=now, **{f"{name}_s": value.total_seconds() for name, value in self._items()})

    def _items(self) -> list[tuple[str, timedelta]]:
        return [(name, getattr(self, name)) for name in ("slice_wait", "start", "stall", "total")]


_DEFAULTS = {each.name: each.default for each in fields(Deadlines)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """:class:`Deadlines` that began at ``asked_at``: absolute, and so the same after any restart.

    All values are in seconds; ``asked_at`` is since the epoch.
    """

    asked_at: float
    slice_wait_s: float
    start_s: float
    stall_s: float
    total_s: float

    @property
    def slice_until(self) -> float:
        return self.asked_at + self.slice_wait_s

    @property
    def total_until(self) -> float:
        return self.asked_at + self.total_s

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Limits:
        return cls(**data)
