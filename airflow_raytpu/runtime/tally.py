"""What the tries of one attempt have cost so far, held against the two budgets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_raytpu.model.errors import LostError
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.faults import first_line
from airflow_raytpu.runtime.outbox import Outbox

log = logging.getLogger(__name__)


@dataclass
class Tally:
    """Counted from the first try of the attempt.

    :ivar held_s: seconds that slices were held, over all tries.
    :ivar causes: why each try but the last ended, in order.
    """

    failures: int = 0
    evictions: int = 0
    held_s: float = 0.0
    causes: list[str] = field(default_factory=list)

    @property
    def tries(self) -> int:
        """Tries that have ended."""
        return self.failures + self.evictions

    def spend(self, error: AuthorError | LostError, allowed: Mapping[str, Any], outbox: Outbox) -> None:
        """Charge *error* to the author's budget or to the place's.

        :param allowed: the request's arguments, with ``failures`` and ``evictions``.
        :raises AuthorError: that budget is used up; :raises LostError: likewise. It is *error* itself.
        """
        budget = "failures" if isinstance(error, AuthorError) else "evictions"
        used, limit = getattr(self, budget) + 1, allowed[budget]
        if used > limit:
            raise error
        setattr(self, budget, used)
        self.causes.append(f"{budget} {used}: {first_line(error)}")
        log.warning("%s\n%s of %s %s used; starting again.", error, used, limit, budget)
        outbox.tell(phase="starting again", message=f"{used} of {limit} {budget} used")
