"""Whole slices of the cluster: taking one, proving it whole, giving it back.

Ray 2.60 picks slices that are broken or busy (its own count of ready slices included), so the choice is made here: a
free whole slice is pinned by name. Its head resource is held as well, because that alone tells other claims of Ray's
that the slice is taken. The groups are plain ones: Ray's own for slices refuse 68 shapes that GKE has, and take the
wrong one of two shapes with equal chips. A slice that is not up yet is asked for by what it will be, so that an
autoscaler sees the demand.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Self

from airflow_raytpu.model.errors import BrokenSliceError, NoSliceError
from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.runtime import demand, division
from airflow_raytpu.runtime.demand import Demand
from airflow_raytpu.runtime.survey import (
    NAME,
    NODE,
    POD,
    WORKER,
    Host,
    SliceView,
    describe,
    slice_name,
    survey,
    verify,
    worker_id,
)

REPORT_INTERVAL_S = 30.0
"""How often a wait says what it sees."""

LOSS_SHOWS_S = 20.0
"""How long a host that is gone may still look alive: 4 s where it refuses connections, 18 s where it is silent."""

_POLL_S = 0.5
_CLAIM_S = 3.0
_AGAIN_S = 30.0
"""How long a slice that is ours may take to be free of the try before."""

GRACE_S = 30.0
"""How long an elastic job waits for more slices once there are enough: those of one cluster do not come in the same
second."""

_LIES = 3
_JOB_ID = 8

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReservedSlice:
    """A whole slice that is ours. ``hosts`` are in order of slice and worker id.

    :param group: holds the chips, one bundle a host, until somebody removes it for a group of its own on these hosts.
    """

    plan: SlicePlan
    group: Any
    hosts: tuple[Host, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(host.slice_name for host in self.hosts))


def look(plan: SlicePlan) -> list[SliceView]:
    """:func:`survey` of the cluster this process is connected to."""
    import ray
    from ray._private.state import available_resources_per_node, state

    # Ray places nothing on a node that will be taken away: as good as gone.
    leaving = state.get_draining_nodes()
    nodes = [node for node in ray.nodes() if node["NodeID"] not in leaving]
    divisions = division.known(plan, nodes)
    return survey(plan, nodes, available_resources_per_node(), _holders(), divisions)


class Lookout:
    """Says what is seen while a slice is waited for: on every change, and each half minute."""

    def __init__(self, plan: SlicePlan, tell: Callable[[str], None], clock: Callable[[], float] = time.time) -> None:
        self._plan, self._tell, self._clock = plan, tell, clock
        self._said, self._said_at, self._since = "", 0.0, clock()
        self.seen = ""

    def look(self) -> list[SliceView]:
        views = look(self._plan)
        self.seen = describe(self._plan, views)
        now = self._clock()
        if self.seen != self._said or now - self._said_at >= REPORT_INTERVAL_S:
            self._said, self._said_at = self.seen, now
            self._tell(self.seen)
            log.info("waiting for a slice: %s (%.0f s)", self.seen, now - self._since)
        return views

    def too_late(self, wait_s: float) -> NoSliceError:
        return NoSliceError(
            f"No whole slice within {wait_s:.0f} s (slice_wait): {self.seen or 'nothing was seen'}.",
            "Raise slice_wait, free a slice, or ask for a smaller one.",
        )


def loss(held: ReservedSlice, within_s: float = 0.0, nodes: Callable[[], list[dict[str, Any]]] | None = None) -> str:
    """Which hosts of *held* are gone; empty where all are there, even after *within_s* seconds."""
    import ray

    until = time.time() + within_s
    while True:
        alive = {node["NodeID"] for node in (nodes or ray.nodes)() if node["Alive"]}
        gone = [host for host in held.hosts if host.node_id not in alive]
        if gone:
            which = ", ".join(f"host {host.worker_id} of slice {host.slice_name}" for host in gone)
            return f"{which} was lost."
        if time.time() >= until:
            return ""
        time.sleep(_POLL_S)


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

    def _others(self) -> bool:
        """Whether there is better than what is held."""
        doubtful = sum(1 for view in self._views if self._doubts[view.name])
        if not doubtful:
            return False
        free = [view for view in look(self._plan) if view.state == "free" and not self._doubts[view.name]]
        return len(free) >= doubtful

    def more(self) -> tuple[str, ...]:
        """Look once, beside a try that has fewer slices than it may have: those that are held for the next one.

        A slice that is free is held; one that went again is let go; for what lacks, the cluster is asked.
        """
        with self._lock:
            views = look(self._plan)
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
            whole = {view.name for view in look(self._plan) if not view.fault}
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
        pins = [pin for view in self._views for pin in _pins(plan, view)]
        group = demand.group(plan.bundles, pins, self._chips)
        if not group.wait(_CLAIM_S):
            self._chips.close()
            return None
        return ReservedSlice(plan, group, _placed(plan, group, self._views))

    def _hold_spare(self, view: SliceView) -> None:
        """Take one slice more, its chips too: until the gang comes, anybody may ask for chips without a slice."""
        if self._hold_head(view):
            one, chips = self._plan.sized(1), ExitStack()
            if demand.group(one.bundles, _pins(one, view), chips).wait(_CLAIM_S):
                self._spare[view.name] = view, chips
                return
            chips.close()
        self._let_go(view.name)

    def _hold_head(self, view: SliceView) -> bool:
        """Take the head resource of one slice; ``False`` where somebody else has it."""
        labels = {WORKER: "0", POD: self._plan.pod_type, NAME: view.name}
        held = self._heads.setdefault(view.name, ExitStack())
        return bool(demand.group([{self._plan.slice.whole.head_resource: 1}], [labels], held).wait(_CLAIM_S))

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


def _pins(plan: SlicePlan, view: SliceView) -> list[dict[str, str]]:
    """Labels of the hosts of one slice or part, one for each bundle."""
    if view.of:
        return [{NAME: view.of, WORKER: str(worker)} for worker in view.workers]
    return [{NAME if plan.slice.hosts > 1 else NODE: view.name}] * plan.slice.hosts


def _holders() -> dict[str, set[str]]:
    """Jobs that have a placement group on a node, by node id."""
    from ray.util.placement_group import placement_group_table

    found: dict[str, set[str]] = defaultdict(set)
    for group, row in placement_group_table().items():
        if row["state"] == "CREATED":
            for node_id in row["bundles_to_node_id"].values():
                # The id of a placement group ends with that of the job that made it.
                found[node_id].add(group[-_JOB_ID:])
    return found


def _placed(plan: SlicePlan, group: Any, views: Sequence[SliceView]) -> tuple[Host, ...]:
    """Where the bundles of *group* are.

    :raises BrokenSliceError: not on whole slices.
    """
    import ray
    from ray.util.placement_group import placement_group_table

    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    where = placement_group_table(group)["bundles_to_node_id"]
    hosts = [
        Host(int(bundle), node_id, slice_name(plan.slice.whole, nodes[node_id]), worker_id(nodes[node_id]))
        for bundle, node_id in where.items()
        if node_id in nodes
    ]
    verify(plan, hosts, views[0].workers)
    return tuple(sorted(hosts, key=lambda host: (host.slice_name, host.worker_id)))
