"""Whole slices of the cluster: taking one, proving it whole, giving it back.

Ray 2.60 picks slices that are broken or busy (its own count of ready slices included), so the choice is made here: a
free whole slice is pinned by name. Its head resource is held as well, because that alone tells other claims of Ray's
that the slice is taken. The groups are plain ones: Ray's own for slices refuse 68 shapes that GKE has, and take the
wrong one of two shapes with equal chips. A slice that is not up yet is asked for by what it will be, so that an
autoscaler sees the demand.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Self

from airflow_raytpu.model.errors import BrokenSliceError, NoSliceError
from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.runtime import division
from airflow_raytpu.runtime.survey import (
    NAME,
    NODE,
    POD,
    TOPOLOGY,
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

    :param tell: is told what is seen while it waits.
    """

    def __init__(self, plan: SlicePlan, tell: Callable[[str], None]) -> None:
        self._plan, self._tell = plan, tell
        self._heads, self._chips = ExitStack(), ExitStack()
        self._views: tuple[SliceView, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()

    def take(self, until: float) -> ReservedSlice:
        """Hold whole slices as the plan says, proven whole: those of the try before, as long as they are.

        :param until: when to give up, in seconds since the epoch.
        :raises NoSliceError: none in time.
        :raises BrokenSliceError: what Ray gave was not what its labels say, several times.
        """
        held = self._again() if self._views else None
        return held or self._find(until)

    def _again(self) -> ReservedSlice | None:
        """The slices of the try before, whose heads are still ours; ``None`` once one of them is not whole."""
        self._chips.close()
        names, until = {view.name for view in self._views}, time.time() + _AGAIN_S
        while time.time() < until:
            mine = [view for view in look(self._plan) if view.name in names and not view.fault]
            if len(mine) < len(names):
                break
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
        with _Demand(self._plan) as demand:
            while True:
                try:
                    held = self._claim(demand.meet(self._look(lookout)))
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
        views = lookout.look()
        lacks = self._plan.slice.part_of and not any(view.state == "free" for view in views)
        return lookout.look() if lacks and division.find_out(self._plan) else views

    def _claim(self, views: Sequence[SliceView]) -> ReservedSlice | None:
        """One try at these; ``None`` where there are none or somebody was faster."""
        if not views:
            return None
        self._views = tuple(views)
        # A single host may have no head on GKE, and Ray asks for none. The head of a part is for whoever wants all.
        headless = self._plan.slice.hosts == 1 or self._plan.slice.part_of
        if not headless and not all(self._hold_head(view) for view in views):
            return None
        return self._claim_chips()

    def _claim_chips(self) -> ReservedSlice | None:
        pins = [pin for view in self._views for pin in _pins(self._plan, view)]
        group = _group(self._plan.bundles, pins, self._chips)
        if not group.wait(_CLAIM_S):
            self._chips.close()
            return None
        return ReservedSlice(self._plan, group, _placed(self._plan, group, self._views))

    def _hold_head(self, view: SliceView) -> bool:
        """Take the head resource of one slice; ``False`` where somebody else has it."""
        labels = {WORKER: "0", POD: self._plan.pod_type, NAME: view.name}
        head = self._plan.slice.whole.head_resource
        return bool(_group([{head: 1}], [labels], self._heads).wait(_CLAIM_S))

    def _give_back(self) -> None:
        self._chips.close()
        self._heads.close()
        self._views = ()


def _pins(plan: SlicePlan, view: SliceView) -> list[dict[str, str]]:
    """Labels of the hosts of one slice or part, one for each bundle."""
    if view.of:
        return [{NAME: view.of, WORKER: str(worker)} for worker in view.workers]
    return [{NAME if plan.slice.hosts > 1 else NODE: view.name}] * plan.slice.hosts


class _Demand:
    """Asks for slices beyond those that are present, as an autoscaler understands it, while too few are free."""

    def __init__(self, plan: SlicePlan) -> None:
        self._plan = plan
        self._held = ExitStack()
        self._asked: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def meet(self, views: Sequence[SliceView]) -> list[SliceView]:
        """Free slices if there are enough, else none, and more are asked for."""
        due = self._plan.slice.num_slices
        free = [view for view in views if view.state == "free"]
        if len(free) >= due:
            self._drop()
            return free[:due]
        if any(_is_placed(group) for group in self._asked):
            # What has come up is held by this very demand, and looks busy until the next look.
            self._drop()
        elif not self._asked:
            self._asked = [self._ask() for _ in range(due - len(free))]
        return []

    def _drop(self) -> None:
        self._held.close()
        self._asked = []

    def _ask(self) -> Any:
        import ray

        plan, shape = self._plan, self._plan.slice.whole
        single = not shape.multi_host
        key = NODE if single else NAME
        # Of other shapes too: equal chips make an equal head.
        alike = [node["Labels"] for node in ray.nodes() if node.get("Labels", {}).get(POD) == plan.pod_type]
        present = sorted({labels[key] for labels in alike if key in labels})
        # As Ray itself asks for a slice: by its head, and a single host by what it has.
        bundle = plan.bundle if single else {shape.head_resource: 1}
        # Not by worker id: an autoscaler knows none before the host is there, and would add nothing (Ray 2.60). That it
        # is the first host follows from the head.
        labels = {POD: plan.pod_type, TOPOLOGY: shape.topology} if single else {POD: plan.pod_type}
        if present:
            # No space after the comma: Ray takes it for a part of the name (2.60).
            labels[key] = f"!in({','.join(present)})"
        return _group([bundle], [labels], self._held)


def _group(bundles: list[dict[str, int]], labels: list[dict[str, str]], held: ExitStack) -> Any:
    """A placement group with one bundle a host, removed when *held* closes."""
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group(bundles, strategy="STRICT_SPREAD", bundle_label_selector=labels)
    held.callback(remove_placement_group, group)
    return group


def _is_placed(group: Any) -> bool:
    from ray.util.placement_group import placement_group_table

    return bool(placement_group_table(group)["state"] == "CREATED")


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
