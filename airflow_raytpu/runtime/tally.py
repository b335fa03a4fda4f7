"""What the tries of a task have cost so far, held against the two budgets."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_raytpu.model.errors import DivergedError, LostError
from airflow_raytpu.model.goodput import Goodput, Pace
from airflow_raytpu.model.spent import Spent
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.faults import first_line
from airflow_raytpu.runtime.outbox import Outbox

log = logging.getLogger(__name__)


@dataclass
class Tally:
    """Counted on from what earlier attempts of the task had spent.

    :ivar tries: tries of this attempt that have ended.
    """

    spent: Spent = field(default_factory=Spent)
    tries: int = 0

    def hold(self, seconds: float) -> None:
        """A try held its slices for *seconds*."""
        self.spent = replace(self.spent, held_s=self.spent.held_s + seconds)

    def spend(self, error: AuthorError | DivergedError | LostError, allowed: Mapping[str, Any], outbox: Outbox) -> None:
        """Charge *error* to the author's budget or to the place's.

        :param allowed: the request's arguments, with ``failures`` and ``evictions``.
        :raises AuthorError: that budget is used up; :raises LostError: likewise. It is *error* itself.
        """
        cause = first_line(error)
        if isinstance(error, AuthorError | DivergedError):
            budget, charged = "failures", self.spent.with_failure(cause)
        else:
            budget, charged = "evictions", self.spent.with_eviction(cause)
        used, limit = getattr(charged, budget), allowed[budget]
        if used > limit:
            raise error
        self.spent, self.tries = charged, self.tries + 1
        log.warning("%s\n%s of %s %s used; starting again.", error, used, limit, budget)
        outbox.tell(phase="starting again", message=f"{used} of {limit} {budget} used", spent=self.spent.to_dict())

    def costs(self) -> dict[str, Any]:
        """For the task's result."""
        spent = self.spent
        return {"evictions": spent.evictions, "failures": spent.failures, "causes": list(spent.causes)}


@dataclass
class StepTally(Tally):
    """With what the time of a training run went into. It begins when it is made, and every second is in it once.

    :param at: up to when all is counted, in seconds since the epoch.
    :ivar began_from: the step that each try went on from.
    :ivar weight: the slices of the last try, as a share of the most that the run may have.
    :ivar spare_s: seconds that others were held beside it, each at its share.
    """

    at: float = 0.0
    began_from: list[int] = field(default_factory=list)
    weight: float = 1.0
    spare_s: float = 0.0

    @property
    def goodput(self) -> Goodput:
        return Goodput.from_dict(self.spent.goodput)

    @property
    def fruitless(self) -> bool:
        """Whether the last try is not known to have done a step."""
        return self.goodput.reached <= self.goodput.began

    def begin(self, step: int) -> None:
        """The next try goes on from *step*; what the last one did beyond that is done again."""
        self.began_from.append(step)
        self._count(self.goodput.going_on(step))

    def take(self, slices: Sequence[str], most: int) -> None:
        """The next try has these *slices*, of the *most* that the run may have."""
        self.spent = replace(self.spent, slices=tuple(slices))
        self.weight, self.spare_s = len(slices) / most, 0.0

    def resize(self, step: int, slices: int, why: str) -> None:
        """It goes on from *step* with another number of slices."""
        self.spent = self.spent.with_resize(step, slices, why)

    def wait(self, now: float) -> None:
        """No slice was held until *now*."""
        self._count(self.goodput.waited(now - self.at))
        self.at = now

    def end(self, pace: Pace, now: float) -> None:
        """A try held its slices until *now*."""
        self.spent, self.at = self.so_far(pace, now), now

    def so_far(self, pace: Pace, now: float) -> Spent:
        """What is spent while a try is under way."""
        before = self.goodput
        account = before.held(pace, self.at, now, self.weight).idled(self.spare_s)
        held_s = self.spent.held_s + account.held_s - before.held_s
        return replace(self.spent, goodput=account.to_dict(), held_s=held_s)

    def costs(self) -> dict[str, Any]:
        account = self.goodput
        return {
            "resizes": list(self.spent.resizes),
            **super().costs(),
            "held_s": round(self.spent.held_s, 1),
            "lost_s": round(account.redone_s, 1),
            "goodput": account.to_result(),
        }

    def _count(self, account: Goodput) -> None:
        self.spent = replace(self.spent, goodput=account.to_dict())
