"""Whole slices of the cluster: what is there, taking one, proving it whole, giving it back.

Ray 2.60 picks slices that are broken or busy (its own count of ready slices included), so the choice is made here: a
free whole slice is pinned by name. Its head resource is held as well, because that alone tells other claims of Ray's
that the slice is taken. A slice that is not up yet is asked for without a name, so that an autoscaler sees the demand.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_raytpu.model.errors import BrokenSliceError, NoSliceError
from airflow_raytpu.placement.catalogue import GENERATIONS
from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.placement.topology import TpuSlice

REPORT_INTERVAL_S = 30.0
"""How often a wait says what it sees."""

_NAME, _WORKER, _TOPOLOGY, _POD = (f"ray.io/tpu-{what}" for what in ("slice-name", "worker-id", "topology", "pod-type"))
_NODE = "ray.io/node-id"
_POLL_S = 0.5
_HEAD_S, _CLAIM_S = 3.0, 20.0
_LIES = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SliceView:
    """One slice as the cluster's nodes show it now.

    :param missing: worker ids with no living host.
    :param busy_chips: chips that somebody holds.
    :param fault: why it is not whole, empty where it is.
    """

    name: str
    hosts: int
    missing: tuple[int, ...]
    busy_chips: int
    fault: str = ""

    @property
    def state(self) -> str:
        if self.fault:
            return "broken"
        return "busy" if self.busy_chips else "free"


@dataclass(frozen=True, slots=True)
class Host:
    """One bundle of a reserved slice, and the host it is on."""

    bundle: int
    node_id: str
    slice_name: str
    worker_id: int


@dataclass(frozen=True, slots=True)
class ReservedSlice:
    """A whole slice that is ours until its context ends. ``hosts`` are in order of slice and worker id."""

    plan: SlicePlan
    group: Any
    hosts: tuple[Host, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(host.slice_name for host in self.hosts))


def survey(
    plan: SlicePlan, nodes: Sequence[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]
) -> list[SliceView]:
    """The slices of the plan's shape among *nodes*, as ``ray.nodes()`` gives them. Pure.

    :param free: free resources by node id; Ray leaves out what is at zero.
    """
    hosts, views = plan.slice.hosts, []
    for name, members in sorted(_by_slice(plan, nodes).items()):
        ids = sorted(_worker_id(node) for node in members)
        chips = sum(node["Resources"].get("TPU", 0) for node in members)
        spare = sum(free.get(node["NodeID"], {}).get("TPU", 0) for node in members)
        missing = tuple(sorted(set(range(hosts)) - set(ids)))
        fault = ""
        if missing:
            fault = f"host {', '.join(map(str, missing))} of {hosts} missing"
        elif ids != list(range(hosts)):
            fault = f"worker ids {ids} where 0-{hosts - 1} are due"
        elif chips != plan.slice.chips:
            fault = f"{chips:g} of {plan.slice.chips} chips"
        views.append(SliceView(name, len(members), missing, round(chips - spare), fault))
    return views


def describe(plan: SlicePlan, views: Sequence[SliceView]) -> str:
    """``2 slices of v6e 4x4 present: 1 busy, 1 broken (rtc-a-1: host 2 of 4 missing)``."""
    what = f"of {plan.slice.accelerator} {plan.slice.topology}"
    if not views:
        return f"no slice {what} present"
    counts = Counter(view.state for view in views)
    faults = "; ".join(f"{view.name}: {view.fault}" for view in views if view.fault)
    states = ", ".join(f"{counts[state]} {state}" for state in ("free", "busy", "broken") if counts[state])
    return f"{len(views)} slice{'s' * (len(views) > 1)} {what} present: {states}" + (f" ({faults})" if faults else "")


def verify(plan: SlicePlan, hosts: Sequence[Host]) -> None:
    """:raises BrokenSliceError: the bundles are not whole slices with worker ids 0..n-1, each once."""
    found = defaultdict(list)
    for host in hosts:
        found[host.slice_name].append(host.worker_id)
    due = list(range(plan.slice.hosts))
    if len(found) != plan.slice.num_slices or any(sorted(ids) != due for ids in found.values()):
        seen = "; ".join(f"{name}: worker ids {sorted(ids)}" for name, ids in sorted(found.items()))
        raise BrokenSliceError(
            f"The hosts that Ray gave are not {plan.slice.describe()}: {seen}.",
            "Look at the TPU_NAME and TPU_WORKER_ID of these hosts; a slice that lies must be made anew.",
        )


def own_slice(nodes: Sequence[Mapping[str, Any]]) -> TpuSlice:
    """The one shape that a cluster has, for a job that takes the cluster's own.

    :raises NoSliceError: it has none, or several.
    """
    shapes = {
        str(TpuSlice.parse(_shape_text(node)))
        for node in nodes
        if node["Alive"] and _TOPOLOGY in node.get("Labels", {})
    }
    if len(shapes) != 1:
        raise NoSliceError(
            f"The task names no slice and its cluster has {', '.join(sorted(shapes)) or 'no TPU at all'}.",
            "Give the task slice=...",
        )
    return TpuSlice.parse(shapes.pop())


def look(plan: SlicePlan) -> list[SliceView]:
    """:func:`survey` of the cluster this process is connected to."""
    import ray
    from ray._private.state import available_resources_per_node

    return survey(plan, ray.nodes(), available_resources_per_node())


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


@contextmanager
def reserve(plan: SlicePlan, until: float, tell: Callable[[str], None]) -> Iterator[ReservedSlice]:
    """Hold whole slices as *plan* says, proven whole, and give them back whatever happens.

    :param until: when to give up, in seconds since the epoch.
    :param tell: is told what is seen while it waits.
    :raises NoSliceError: none in time.
    :raises BrokenSliceError: what Ray gave was not what its labels say, several times.
    """
    lookout, asked, lies = Lookout(plan, tell), time.time(), 0
    while True:
        with ExitStack() as held:
            try:
                claimed = _claim(plan, lookout.look(), held)
            except BrokenSliceError as error:
                lies += 1
                if lies == _LIES:
                    raise
                log.warning("%s Trying again.", error.cause)
                claimed = None
            if claimed is not None:
                yield claimed
                return
        if time.time() > until:
            raise lookout.too_late(until - asked)
        time.sleep(_POLL_S)


@contextmanager
def cordon(plan: SlicePlan) -> Iterator[ExitStack]:
    """Keep claims of Ray's own off the broken slices, by holding their heads. Close what it yields to end it early."""
    with ExitStack() as held:
        for view in look(plan):
            if view.fault and 0 not in view.missing and _hold_head(plan, view.name, held):
                log.warning("slice %s is broken (%s) and kept aside", view.name, view.fault)
        yield held


def _claim(plan: SlicePlan, views: Sequence[SliceView], held: ExitStack) -> ReservedSlice | None:
    """One try at whole slices: free ones by name, else whichever comes up. *held* gives back what was taken."""
    from ray.util.tpu import slice_placement_group

    free = [view.name for view in views if view.state == "free"][: plan.slice.num_slices]
    pins: list[dict[str, str]] | None = None
    if len(free) == plan.slice.num_slices:
        if plan.slice.hosts == 1:
            pins = [{_NODE: name} for name in free]
        elif all(_hold_head(plan, name, held) for name in free):
            pins = [{_NAME: name} for name in free for _ in range(plan.slice.hosts)]
        else:
            return None
    else:
        held.enter_context(cordon(plan))
        if plan.slice.hosts == 1:
            # Without this, a single host is taken out of any slice (Ray 2.60).
            pins = [{_TOPOLOGY: plan.slice.topology}]
    try:
        group = slice_placement_group(
            topology=plan.slice.topology,
            accelerator_version=plan.accelerator_version,
            num_slices=plan.slice.num_slices,
            chips_per_vm=plan.chips_per_worker,
            head_reservation_timeout_s=_CLAIM_S,
            bundle_label_selector=pins,
        )
    except TimeoutError:
        return None
    held.callback(group.shutdown)
    if not group.placement_group.wait(_CLAIM_S):
        return None
    return ReservedSlice(plan, group.placement_group, _placed(plan, group.placement_group))


def _hold_head(plan: SlicePlan, name: str, held: ExitStack) -> bool:
    """Take the head resource of one slice; ``False`` where somebody else has it."""
    from ray.util.placement_group import placement_group, remove_placement_group

    head = placement_group(
        [{f"TPU-{plan.pod_type}-head": 1}], bundle_label_selector=[{_WORKER: "0", _POD: plan.pod_type, _NAME: name}]
    )
    held.callback(remove_placement_group, head)
    return bool(head.wait(_HEAD_S))


def _placed(plan: SlicePlan, group: Any) -> tuple[Host, ...]:
    """Where the bundles of *group* are.

    :raises BrokenSliceError: not on whole slices.
    """
    import ray
    from ray.util.placement_group import placement_group_table

    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    where = placement_group_table(group)["bundles_to_node_id"]
    hosts = [
        Host(int(bundle), node_id, _slice_name(plan, nodes[node_id]), _worker_id(nodes[node_id]))
        for bundle, node_id in where.items()
        if node_id in nodes
    ]
    verify(plan, hosts)
    return tuple(sorted(hosts, key=lambda host: (host.slice_name, host.worker_id)))


def _by_slice(plan: SlicePlan, nodes: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found = defaultdict(list)
    for node in nodes:
        labels = node.get("Labels", {})
        if node["Alive"] and labels.get(_POD) == plan.pod_type and labels.get(_TOPOLOGY) == plan.slice.topology:
            found[_slice_name(plan, node)].append(node)
    return found


def _slice_name(plan: SlicePlan, node: Mapping[str, Any]) -> str:
    # A single host has no slice name on GKE, and is its own slice.
    return str(node["NodeID"] if plan.slice.hosts == 1 else node["Labels"].get(_NAME, node["NodeID"]))


def _worker_id(node: Mapping[str, Any]) -> int:
    return int(node["Labels"].get(_WORKER, 0))


def _shape_text(node: Mapping[str, Any]) -> str:
    """A node's slice as :meth:`TpuSlice.parse` reads it; the machine only matters where a topology is on two."""
    labels, chips = node["Labels"], int(node["Resources"].get("TPU", 0))
    generation = next(g for g in GENERATIONS.values() if labels[_POD].startswith(f"{g.ray_version}-"))
    return f"{generation.name}:{labels[_TOPOLOGY]}@{generation.machines[chips]}"
