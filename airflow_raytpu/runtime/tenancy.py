"""One job's hold on whole slices over several tries: the same ones while they serve, others once they do not.

A slice that is not up yet is asked for by what it will be, so that an autoscaler sees the demand.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self

from airflow_raytpu.model.errors import BrokenSliceError, LostError
from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.runtime import division, slices
from airflow_raytpu.runtime.buckets import SilentError
from airflow_raytpu.runtime.demand import Demand
from airflow_raytpu.runtime.slices import Lookout, ReservedSlice
from airflow_raytpu.runtime.survey import SliceView

GRACE_S = 30.0
"""How long an elastic job waits for more slices once there are enough: those of one cluster do not come in the same
second."""

_POLL_S = 0.5
_AGAIN_S = 30.0
"""How long a slice that is ours may take to be free of the try before."""

_LIES = 3

log = logging.getLogger(__name__)


@contextmanager
def reserve(plan: SlicePlan, until: float, tell: Callable[[str], None]) -> Iterator[ReservedSlice]:
    """:meth:`Tenancy.take` once, and give it back whatever happens."""
    with Tenancy(plan, tell) as tenancy:
        yield tenancy.take(until)


class Tenancy:
    """One job's hold on whole slices, over several tries. Its end gives them back.

    :param plan: with as many slices as it may have.
    :param tell: is told what is seen while it waits.
    :param least: the fewest slices that it goes on with; those of *plan* where left out.
    """

    def __init__(self, plan: SlicePlan, tell: Callable[[str], None], least: int | None = None) -> None:
        self._plan, self._tell = plan, tell
        self._most = plan.slice.num_slices
        self._least = self._most if least is None else least
        self._chips = ExitStack()
        self._heads: dict[str, ExitStack] = {}
        self._views: tuple[SliceView, ...] = ()
        self._spare: dict[str, tuple[SliceView, ExitStack]] = {}
        self._wish = Demand(plan)
        self._doubts = Counter[str]()
        # more() is called beside the main thread.
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._give_back()

    def take(self, until: float) -> ReservedSlice:
        """Hold whole slices as the plan says, proven whole: those of the try before, as long as they are.

        An elastic job goes on with those that are, and with what :meth:`more` has found.

        :param until: when to give up, in seconds since the epoch.
        :raises NoSliceError: none in time.
        :raises BrokenSliceError: what Ray gave was not what its labels say, several times.
        """
        with self._lock:
            if self._others():
                self._give_back()
            held = self._again() if self._views else None
            return held or self._find(until)

    def doubt(self) -> bool:
        """A try came to nothing on slices that look whole, so others come first from now on.

        :returns: whether enough others are free now.
        """
        with self._lock:
            self._doubts.update(view.name for view in self._views)
            return self._others()

    def as_loss(self, error: BrokenSliceError | LostError | SilentError, *, fruitless: bool) -> LostError:
        """*error*, which ended a try, as the loss to charge for. Slices that may be to blame for it are doubted.

        :param fruitless: nothing that the try did is known to last.
        :raises BrokenSliceError: *error* itself: the slice is not what it says, and no other is free.
        """
        if isinstance(error, BrokenSliceError):
            if not self.doubt():
                raise error
            return LostError(error.cause, error.lever)
        if isinstance(error, SilentError):
            # It would have been as silent on any other slice.
            return LostError(error.cause, error.lever)
        if fruitless:
            self.doubt()
        return error

    def _others(self) -> bool:
        """Whether there is better than what is held."""
        doubtful = sum(1 for view in self._views if self._doubts[view.name])
        if not doubtful:
            return False
        free = [view for view in slices.look(self._plan) if view.state == "free" and not self._doubts[view.name]]
        return len(free) >= doubtful

    def more(self) -> tuple[str, ...]:
        """Look once, beside a try that has fewer slices than it may have: those that are held for the next one.

        A slice that is free is held; one that went again is let go; for what lacks, the cluster is asked.
        """
        with self._lock:
            views = slices.look(self._plan)
            whole = {view.name for view in views if not view.fault}
            for name in [name for name in self._spare if name not in whole]:
                self._let_go(name)
            lacks = self._most - len(self._views) - len(self._spare)
            for view in self._wish.meet(views, lacks) if lacks > 0 else ():
                self._hold_spare(view)
            return tuple(sorted(self._spare))

    def rest(self) -> None:
        """Ask for no more until :meth:`more` is called again: what comes up is for others."""
        with self._lock:
            self._wish.drop()

    def _again(self) -> ReservedSlice | None:
        """The slices of the try before, and spare ones, whose heads are still ours; ``None`` once too few are whole."""
        self._wish.drop()
        self._chips.close()
        mine = [*self._views, *(view for view, _ in self._spare.values())]
        for _, chips in self._spare.values():
            chips.close()
        self._spare = {}
        self._views, until = tuple(sorted(mine, key=_by_name)), time.time() + _AGAIN_S
        while time.time() < until:
            whole = {view.name for view in slices.look(self._plan) if not view.fault}
            gone = [view.name for view in self._views if view.name not in whole]
            if len(self._views) - len(gone) < self._least:
                break
            for name in gone:
                self._let_go(name)
            try:
                held = self._claim_chips()
            except BrokenSliceError as error:
                log.warning("%s", error.cause)
                break
            if held is not None:
                return held
        self._give_back()
        return None

    def _find(self, until: float) -> ReservedSlice:
        lookout, began, lies = Lookout(self._plan, self._tell), time.time(), 0
        patience = _Patience(self._least, self._most)
        with Demand(self._plan) as asked:
            while True:
                found = asked.meet(self._look(lookout), self._most)
                try:
                    held = self._claim(patience.enough(found))
                except BrokenSliceError as error:
                    lies += 1
                    if lies == _LIES:
                        raise
                    log.warning("%s Trying again.", error.cause)
                    held = None
                if held is not None:
                    return held
                self._give_back()
                if time.time() > until:
                    raise lookout.too_late(until - began)
                time.sleep(_POLL_S)

    def _look(self, lookout: Lookout) -> list[SliceView]:
        views = sorted(lookout.look(), key=lambda view: self._doubts[view.name])
        lacks = self._plan.slice.part_of and not any(view.state == "free" for view in views)
        return lookout.look() if lacks and division.find_out(self._plan) else views

    def _claim(self, views: Sequence[SliceView]) -> ReservedSlice | None:
        """One try at these; ``None`` where there are none or somebody was faster."""
        if not views:
            return None
        self._views = tuple(sorted(views, key=_by_name))
        # A single host may have no head on GKE, and Ray asks for none. The head of a part is for whoever wants all.
        headless = self._plan.slice.hosts == 1 or self._plan.slice.part_of
        if not headless and not all(self._hold_head(view) for view in views):
            return None
        return self._claim_chips()

    def _claim_chips(self) -> ReservedSlice | None:
        plan = self._plan.sized(len(self._views))
        group = slices.hold_chips(plan, self._views, self._chips)
        return None if group is None else slices.proven(plan, group, self._views)

    def _hold_spare(self, view: SliceView) -> None:
        """Take one slice more, its chips too: until the gang comes, anybody may ask for chips without a slice."""
        if self._hold_head(view):
            chips = ExitStack()
            if slices.hold_chips(self._plan.sized(1), [view], chips) is not None:
                self._spare[view.name] = view, chips
                return
        self._let_go(view.name)

    def _hold_head(self, view: SliceView) -> bool:
        return slices.hold_head(self._plan, view.name, self._heads.setdefault(view.name, ExitStack()))

    def _let_go(self, name: str) -> None:
        """Give one slice back."""
        if name in self._spare:
            self._spare.pop(name)[1].close()
        if name in self._heads:
            self._heads.pop(name).close()
        self._views = tuple(view for view in self._views if view.name != name)

    def _give_back(self) -> None:
        self._wish.drop()
        self._chips.close()
        for name in {*self._heads, *self._spare}:
            self._let_go(name)
        self._views = ()


class _Patience:
    """How long slices that are there wait for those that are not: they must not lie idle for what may never come."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._since: float | None = None

    def enough(self, found: Sequence[SliceView]) -> Sequence[SliceView]:
        """Those to begin with, or none yet."""
        if len(found) >= self._most:
            return found
        if len(found) < self._least:
            self._since = None
            return ()
        if self._since is None:
            self._since = time.time()
            log.info("%d of %d slices are free; waiting %.0f s for more", len(found), self._most, GRACE_S)
        if time.time() - self._since < GRACE_S:
            return ()
        log.info("going on with %d of %d slices, until there are more", len(found), self._most)
        return found


def _by_name(view: SliceView) -> str:
    return view.name
