"""The tries of an attempt: again on whole slices after what the place or the author's code broke off."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow_raytpu.model.errors import BrokenSliceError, LostError
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.spent import Spent
from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.runtime import relay
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.buckets import SilentError
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.tally import Tally
from airflow_raytpu.runtime.tenancy import Tenancy, reserve


class Tries:
    """The tries of one attempt, as the two budgets allow. What lasts between them is for the work itself to keep.

    :param allowed: ``failures`` and ``evictions``.
    :param holds: a try holds its slices; else it begins once there are whole ones, which it takes in its own way.
    :ivar tally: what they have cost.
    """

    def __init__(
        self,
        request: RayRequest,
        outbox: Outbox,
        slice_plan: SlicePlan,
        allowed: Mapping[str, Any],
        *,
        holds: bool = True,
    ) -> None:
        self._limits, self._outbox, self._plan = request.limits, outbox, slice_plan
        self._allowed, self._holds = allowed, holds
        self._fruitless = True
        self.tally = Tally(Spent.of(request.arguments))

    def run(self, work: Callable[[ReservedSlice], Any]) -> Any:
        """What *work* returned, which each try calls with its slices.

        :raises AuthorError: it raised more often than ``failures`` allows.
        :raises BrokenSliceError: a slice is not what it says, and there is no other.
        :raises LostError: slices were lost more often than ``evictions`` allows.
        :raises NoSliceError: no whole slice in time.
        """
        with Tenancy(self._plan, self._outbox.wait) as tenancy:
            while True:
                try:
                    return self._try(tenancy, work)
                except (BrokenSliceError, LostError, SilentError) as error:
                    self._spend(tenancy.as_loss(error, fruitless=self._fruitless))
                except AuthorError as error:
                    self._spend(error)

    def got_on(self) -> None:
        """The try under way has got somewhere: if it is lost, its slices are not to blame for that."""
        self._fruitless = False

    def _try(self, tenancy: Tenancy, work: Callable[[ReservedSlice], Any]) -> Any:
        self._fruitless = True
        self._outbox.tell(phase="waiting for a slice", message="")
        with relay.Pump(self._outbox.flush):
            held = self._take(tenancy)
        began, latest = time.time(), self._outbox.latest
        slice_at = latest.slice_at if latest.first_at else began
        self._outbox.tell(phase="setting up", slice_at=slice_at, message=f"on {', '.join(held.names)}")
        try:
            return work(held)
        finally:
            self.tally.hold(time.time() - began)

    def _take(self, tenancy: Tenancy) -> ReservedSlice:
        again = time.time() + self._limits.slice_wait_s
        until = again if self.tally.tries else self._limits.slice_until
        if self._holds:
            return tenancy.take(until)
        # There is a whole slice, which is all that was wanted.
        with reserve(self._plan, until, self._outbox.wait) as shown:
            return shown

    def _spend(self, error: AuthorError | LostError) -> None:
        self.tally.spend(error, self._allowed, self._outbox)
