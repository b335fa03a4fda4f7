"""What the tries of a task have cost so far, held against the two budgets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_raytpu.model.errors import LostError
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

    def spend(self, error: AuthorError | LostError, allowed: Mapping[str, Any], outbox: Outbox) -> None:
        """Charge *error* to the author's budget or to the place's.

        :param allowed: the request's arguments, with ``failures`` and ``evictions``.
        :raises AuthorError: that budget is used up; :raises LostError: likewise. It is *error* itself.
        """
        cause = first_line(error)
        if isinstance(error, AuthorError):
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
