"""Whole slices of the cluster: what is there, taking one, proving it whole, giving it back.

Ray 2.60 picks slices that are broken or busy (its own count of ready slices included), so the choice is made here: a
free whole slice is pinned by name. Its head resource is held as well, because that alone tells other claims of Ray's
that the slice is taken. The groups are plain ones: Ray's own for slices refuse 68 shapes that GKE has, and take the
wrong one of two shapes with equal chips. A slice that is not up yet is asked for by what it will be, so that an
autoscaler sees the demand.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Self

from airflow_raytpu.model.errors import BrokenSliceError, NoSliceError
from airflow_raytpu.placement.catalogue import GENERATIONS, find
from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.placement.topology import TpuSlice

REPORT_INTERVAL_S = 30.0
"""How often a wait says what it sees."""

_NAME, _WORKER, _TOPOLOGY, _POD = (f"ray.io/tpu-{what}" for what in ("slice-name", "worker-id", "topology", "pod-type"))
_NODE = "ray.io/node-id"
_POLL_S = 0.5
_CLAIM_S = 3.0
_LIES = 3
_JOB_ID = 8

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SliceView:
    """One slice as the cluster's nodes show it now.

    :param missing: worker ids with no living host.
    :param busy_chips: chips that somebody holds.
    :param fault: why it is not whole, empty where it is.
    :param claimed: whether somebody holds its head, which keeps others off it before any chip is held; a single host
        is not held that way.
    :param jobs: Ray jobs whose placement groups are on it.
    """

    name: str
    hosts: int
    missing: tuple[int, ...]
    busy_chips: int
    fault: str = ""
    claimed: bool = False
    jobs: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        if self.fault:
            return "broken"
        return "busy" if self.busy_chips or self.claimed else "free"

    @property
    def note(self) -> str:
        """What there is to say about it beyond its state."""
        if self.fault:
            return f"{self.name}: {self.fault}"
        return f"{self.name}: job {', '.join(self.jobs)}" if self.state == "busy" and self.jobs else ""


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
    plan: SlicePlan,
    nodes: Sequence[Mapping[str, Any]],
    free: Mapping[str, Mapping[str, float]],
    holders: Mapping[str, AbstractSet[str]] | None = None,
) -> list[SliceView]:
    """The slices of the plan's shape among *nodes*, as ``ray.nodes()`` gives them. Pure.

    :param free: free resources by node id; Ray leaves out what is at zero.
    :param holders: jobs with a placement group there, by node id.
    """
    views, head = [], plan.slice.shape.head_resource if plan.slice.hosts > 1 else None
    for name, members in sorted(_by_slice(plan, nodes).items()):
        chips = sum(node["Resources"].get("TPU", 0) for node in members)
        spare = sum(free.get(node["NodeID"], {}).get("TPU", 0) for node in members)
        ids = sorted(_worker_id(node) for node in members)
        views.append(
            SliceView(
                name,
                len(members),
                tuple(sorted(set(range(plan.slice.hosts)) - set(ids))),
                round(chips - spare),
                _fault(plan, ids, chips),
                any(head in node["Resources"] and head not in free.get(node["NodeID"], {}) for node in members),
                tuple(sorted({job for node in members for job in (holders or {}).get(node["NodeID"], ())})),
            )
        )
    return views


def _fault(plan: SlicePlan, ids: Sequence[int], chips: float) -> str:
    """Why hosts with these worker ids and chips are no whole slice, empty where they are one."""
    hosts = plan.slice.hosts
    if missing := sorted(set(range(hosts)) - set(ids)):
        return f"host {', '.join(map(str, missing))} of {hosts} missing"
    if list(ids) != list(range(hosts)):
        return f"worker ids {list(ids)} where 0-{hosts - 1} are due"
    return "" if chips == plan.slice.chips else f"{chips:g} of {plan.slice.chips} chips"


def describe(plan: SlicePlan, views: Sequence[SliceView]) -> str:
    """``2 slices of v6e 4x4 present: 1 busy, 1 broken (rtc-a-0: job 03000000; rtc-a-1: host 2 of 4 missing)``."""
    what = f"of {plan.slice.accelerator} {plan.slice.topology}"
    if not views:
        return f"no slice {what} present"
    counts = Counter(view.state for view in views)
    notes = "; ".join(view.note for view in views if view.note)
    states = ", ".join(f"{counts[state]} {state}" for state in ("free", "busy", "broken") if counts[state])
    return f"{len(views)} slice{'s' * (len(views) > 1)} {what} present: {states}" + (f" ({notes})" if notes else "")


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

    return survey(plan, ray.nodes(), available_resources_per_node(), _holders())


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
    lookout, began, lies = Lookout(plan, tell), time.time(), 0
    with _Demand(plan) as demand:
        while True:
            with ExitStack() as held:
                try:
                    claimed = _claim(plan, demand.meet(lookout.look()), held)
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
                raise lookout.too_late(until - began)
            time.sleep(_POLL_S)


@contextmanager
def cordon(plan: SlicePlan) -> Iterator[ExitStack]:
    """Keep claims of Ray's own off the broken slices, by holding their heads. Close what it yields to end it early."""
    with ExitStack() as held:
        for view in look(plan):
            if view.fault and not view.claimed and 0 not in view.missing and _hold_head(plan, view.name, held):
                log.warning("slice %s is broken (%s) and kept aside", view.name, view.fault)
        yield held


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

    def meet(self, views: Sequence[SliceView]) -> list[str]:
        """The names of free slices if there are enough, else none, and more are asked for."""
        due = self._plan.slice.num_slices
        free = [view.name for view in views if view.state == "free"]
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

        plan, single = self._plan, self._plan.slice.hosts == 1
        key = _NODE if single else _NAME
        # Of other shapes too: equal chips make an equal head.
        alike = [node["Labels"] for node in ray.nodes() if node.get("Labels", {}).get(_POD) == plan.pod_type]
        present = sorted({labels[key] for labels in alike if key in labels})
        # As Ray itself asks for a slice: by its head, and a single host by what it has.
        bundle = plan.bundle if single else {plan.slice.shape.head_resource: 1}
        labels = {_POD: plan.pod_type, **({_TOPOLOGY: plan.slice.topology} if single else {_WORKER: "0"})}
        if present:
            # No space after the comma: Ray takes it for a part of the name (2.60).
            labels[key] = f"!in({','.join(present)})"
        return _group([bundle], [labels], self._held)


def _claim(plan: SlicePlan, names: Sequence[str], held: ExitStack) -> ReservedSlice | None:
    """One try at the slices called *names*; ``None`` where there are none or somebody was faster.

    *held* gives back what was taken.
    """
    if not names:
        return None
    single = plan.slice.hosts == 1
    # A single host may have no head on GKE, and Ray asks for none.
    if not single and not all(_hold_head(plan, name, held) for name in names):
        return None
    pins = [{_NODE if single else _NAME: name} for name in names for _ in range(plan.slice.hosts)]
    group = _group(plan.bundles, pins, held)
    if not group.wait(_CLAIM_S):
        return None
    return ReservedSlice(plan, group, _placed(plan, group))


def _hold_head(plan: SlicePlan, name: str, held: ExitStack) -> bool:
    """Take the head resource of one slice; ``False`` where somebody else has it."""
    labels = {_WORKER: "0", _POD: plan.pod_type, _NAME: name}
    return bool(_group([{plan.slice.shape.head_resource: 1}], [labels], held).wait(_CLAIM_S))


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
    # One topology can be there on two machines: 2x4 is one host with 8 chips, or two with 4.
    others = {shape.chips_per_host for shape in find(plan.slice.accelerator, plan.slice.topology)}
    others.discard(plan.chips_per_worker)
    return {
        name: members
        for name, members in found.items()
        if max(node["Resources"].get("TPU", 0) for node in members) not in others
    }


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
