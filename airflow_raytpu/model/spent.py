"""What a task has cost so far in restarts, over the attempts that were lost under it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airflow_raytpu.model import reading
from airflow_raytpu.model.observation import Progress

ARGUMENT = "spent"
"""Argument of a request that has it."""

_LISTS = {"causes": "str", "slices": "str", "resizes": "Mapping"}

FRUITLESS = 3
"""Attempts in a row that never held a slice, after which a loss is no accident of the place any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Counted since Airflow began the task's try.

    :param failures: restarts after the author's code raised.
    :param evictions: restarts after a preemption or a lost host, slice, head or cluster.
    :param fruitless: attempts in a row, up to now, that were lost before they held a slice.
    :param held_s: seconds that slices were held. Fewer than a training may have count at their share, as in *goodput*.
    :param causes: why each restart was needed, in order.
    :param goodput: training: what the time went into, as :class:`airflow_raytpu.model.goodput.Goodput` writes it.
    :param slices: training: the names of those that the last try held.
    :param resizes: training: where it went on with another number of them: ``at_step``, ``slices``, ``why``.
    """

    failures: int = 0
    evictions: int = 0
    fruitless: int = 0
    held_s: float = 0.0
    causes: Sequence[str] = ()
    goodput: Mapping[str, Any] = field(default_factory=dict)
    slices: Sequence[str] = ()
    resizes: Sequence[Mapping[str, Any]] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), **{name: list(getattr(self, name)) for name in _LISTS}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Spent:
        """:raises RequestError: it is nothing of the kind."""
        lists = {name: reading.plains(f"restarts.{name}", kind, data.get(name, ())) for name, kind in _LISTS.items()}
        return reading.newer("restarts", cls, {**data, **lists})

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Spent:
        """What was spent before the request with *arguments* was made."""
        return cls.from_dict(arguments.get(ARGUMENT) or {})

    def with_failure(self, cause: str) -> Spent:
        """And one more restart, by the author's code."""
        number = self.failures + 1
        return replace(self, failures=number, causes=(*self.causes, f"failures {number}: {cause}"))

    def with_eviction(self, cause: str) -> Spent:
        """And one more restart, by the place."""
        number = self.evictions + 1
        return replace(self, evictions=number, causes=(*self.causes, f"evictions {number}: {cause}"))

    def with_resize(self, step: int, slices: int, why: str) -> Spent:
        """And one more number of slices, with which it goes on from *step*."""
        return replace(self, resizes=(*self.resizes, {"at_step": step, "slices": slices, "why": why}))


def after_loss(arguments: Mapping[str, Any], progress: Progress | None, cause: str) -> Spent:
    """What is spent when an attempt is lost as a whole.

    :param arguments: those of its request.
    :param progress: its last sign of life, with what it had spent itself; ``None`` where there is none.
    """
    before = Spent.of(arguments)
    if progress is None or not progress.slice_at:
        return replace(before.with_eviction(cause), fruitless=before.fruitless + 1)
    told = Spent.from_dict(progress.spent) if progress.spent else before
    return replace(told.with_eviction(cause), fruitless=0, held_s=held_s(arguments, progress))


def held_s(arguments: Mapping[str, Any], progress: Progress) -> float:
    """Seconds that slices were held up to the last sign of life of an attempt, and before it.

    :param arguments: those of its request.
    """
    told, before = Spent.from_dict(progress.spent), Spent.of(arguments)
    if told.goodput or not progress.slice_at:
        # Told with each step, at its share, without the waits between its tries.
        return max(told.held_s, before.held_s)
    # Told at restarts only.
    return max(told.held_s, before.held_s + max(0.0, progress.at - progress.slice_at))
