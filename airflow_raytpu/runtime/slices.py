"""Whole slices of the cluster: seeing them, holding some, proving them whole.

Ray 2.60 picks slices that are broken or busy (its own count of ready slices included), so the choice is made here: a
free whole slice is pinned by name. Its head resource is held as well, because that alone tells other claims of Ray's
that the slice is taken. The groups are plain ones: Ray's own for slices refuse 68 shapes that GKE has, and take the
wrong one of two shapes with equal chips. Which slices a job holds from try to try is for
:mod:`airflow_raytpu.runtime.tenancy` to say.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from airflow_raytpu.model.errors import NoSliceError
from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.runtime import demand, division
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


def hold_head(plan: SlicePlan, name: str, held: ExitStack) -> bool:
    """Have the head resource of the slice *name* until *held* closes; ``False`` where somebody else has it."""
    labels = {WORKER: "0", POD: plan.pod_type, NAME: name}
    return bool(demand.group([{plan.slice.whole.head_resource: 1}], [labels], held).wait(_CLAIM_S))


def hold_chips(plan: SlicePlan, views: Sequence[SliceView], held: ExitStack) -> Any | None:
    """Have all chips of the plan's slices, which are *views*, until *held* closes; the group that holds them.

    :returns: ``None`` where somebody was faster; then nothing is held.
    """
    made = demand.group(plan.bundles, [pin for view in views for pin in _pins(plan, view)], held)
    if made.wait(_CLAIM_S):
        return made
    held.close()
    return None


def proven(plan: SlicePlan, group: Any, views: Sequence[SliceView]) -> ReservedSlice:
    """What *group* holds, which is to be *views*.

    :raises BrokenSliceError: it is not on whole slices.
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
    return ReservedSlice(plan, group, tuple(sorted(hosts, key=lambda host: (host.slice_name, host.worker_id))))


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
