"""What a cluster's nodes say about its slices, and about parts of slices. Pure: no call of Ray here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from airflow_raytpu.model.errors import BrokenSliceError, NoSliceError
from airflow_raytpu.placement.catalogue import GENERATIONS, Shape, find
from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.placement.topology import TpuSlice

NAME, WORKER, TOPOLOGY, POD = (f"ray.io/tpu-{what}" for what in ("slice-name", "worker-id", "topology", "pod-type"))
NODE = "ray.io/node-id"
_PART = "ray.io/tpu-subslice-"

Node = Mapping[str, Any]
Divisions = Mapping[str, Mapping[str, Mapping[str, str]]]
"""By slice and worker id, which part of each topology a host is in, as Ray 2.60 keeps it once it has found out."""


@dataclass(frozen=True, slots=True)
class SliceView:
    """One slice, or one part of a slice, as the cluster's nodes show it now.

    :param missing: worker ids with no living host.
    :param busy_chips: chips that somebody holds.
    :param fault: why it is not whole, empty where it is.
    :param claimed: whether somebody holds its head, which keeps others off it before any chip is held. A single host
        may have no head.
    :param jobs: Ray jobs whose placement groups are on it.
    :param of: the slice it is a part of, empty for a slice.
    :param workers: worker ids of a part.
    """

    name: str
    hosts: int
    missing: tuple[int, ...]
    busy_chips: int
    fault: str = ""
    claimed: bool = False
    jobs: tuple[str, ...] = ()
    of: str = ""
    workers: tuple[int, ...] = ()

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


def survey(
    plan: SlicePlan,
    nodes: Sequence[Node],
    free: Mapping[str, Mapping[str, float]],
    holders: Mapping[str, AbstractSet[str]] | None = None,
    divisions: Divisions | None = None,
) -> list[SliceView]:
    """The slices of the plan's shape among *nodes*, as ``ray.nodes()`` gives them.

    :param free: free resources by node id; Ray leaves out what is at zero.
    :param holders: jobs with a placement group there, by node id.
    :param divisions: how slices divide into parts, for a plan of a part; a slice that is not in it has no parts yet.
    """
    views: list[SliceView] = []
    for name, members in sorted(_by_slice(plan.slice.whole, nodes).items()):
        # Who reserves another shape of as many chips may hold the head of a single host, which nobody needs.
        head = plan.slice.whole.head_resource if plan.slice.whole.multi_host else None
        held = _Holding(free, holders or {}, head)
        if plan.slice.part_of:
            views += _parts(plan, name, members, (divisions or {}).get(name, {}), held)
        else:
            views.append(_view(plan, name, members, held))
    return views


@dataclass(frozen=True, slots=True)
class _Holding:
    """Who holds what."""

    free: Mapping[str, Mapping[str, float]]
    holders: Mapping[str, AbstractSet[str]]
    head: str | None

    def chips(self, members: Sequence[Node]) -> int:
        total = sum(float(node["Resources"].get("TPU", 0)) for node in members)
        return round(total - sum(self.free.get(node["NodeID"], {}).get("TPU", 0) for node in members))

    def is_claimed(self, members: Sequence[Node]) -> bool:
        return any(
            self.head in node["Resources"] and self.head not in self.free.get(node["NodeID"], {}) for node in members
        )

    def jobs(self, members: Sequence[Node]) -> tuple[str, ...]:
        return tuple(sorted({job for node in members for job in self.holders.get(node["NodeID"], ())}))


def _view(plan: SlicePlan, name: str, members: Sequence[Node], held: _Holding) -> SliceView:
    ids = sorted(worker_id(node) for node in members)
    return SliceView(
        name,
        len(members),
        tuple(sorted(set(range(plan.slice.hosts)) - set(ids))),
        held.chips(members),
        _fault(plan, ids, sum(node["Resources"].get("TPU", 0) for node in members)),
        held.is_claimed(members),
        held.jobs(members),
    )


def _parts(
    plan: SlicePlan, name: str, members: Sequence[Node], division: Mapping[str, Mapping[str, str]], held: _Holding
) -> Iterator[SliceView]:
    """The parts of the plan's topology in one slice. Whoever claims the whole slice has them all."""
    due = defaultdict(list)
    for worker, labels in division.items():
        due[int(labels.get(_PART + plan.slice.topology, -1))].append(int(worker))
    for index, workers in sorted(due.items()):
        # A division that Ray found while a host was away has parts that lack it.
        if index < 0 or len(workers) != plan.slice.hosts:
            continue
        mine = [node for node in members if worker_id(node) in workers]
        missing = tuple(sorted(set(workers) - {worker_id(node) for node in mine}))
        fault = f"host {', '.join(map(str, missing))} of {plan.slice.whole.hosts} missing" if missing else ""
        yield SliceView(
            f"{name}/{index}",
            len(mine),
            missing,
            held.chips(mine),
            fault,
            held.is_claimed(members),
            held.jobs(mine),
            name,
            tuple(sorted(workers)),
        )


def _fault(plan: SlicePlan, ids: Sequence[int], chips: float) -> str:
    """Why hosts with these worker ids and chips are no whole slice, empty where they are one."""
    hosts = plan.slice.hosts
    if hosts == 1 and list(ids) != [0]:
        # The TPU webhook counts on where a single host is made anew, and libtpu then waits for a host 0.
        return f"worker id {', '.join(map(str, ids))} where 0 is due"
    if missing := sorted(set(range(hosts)) - set(ids)):
        return f"host {', '.join(map(str, missing))} of {hosts} missing"
    if list(ids) != list(range(hosts)):
        return f"worker ids {list(ids)} where 0-{hosts - 1} are due"
    return "" if chips == plan.slice.chips else f"{chips:g} of {plan.slice.chips} chips"


def describe(plan: SlicePlan, views: Sequence[SliceView]) -> str:
    """``2 slices of v6e 4x4 present: 1 busy, 1 broken (rtc-a-0: job 03000000; rtc-a-1: host 2 of 4 missing)``."""
    shape = plan.slice
    what = f"of {shape.accelerator} {shape.topology}"
    one = "slice"
    if shape.part_of:
        what, one = f"{shape.topology} of {shape.accelerator} {shape.part_of}", "part"
    if not views:
        return f"no {one} {what} present"
    counts = Counter(view.state for view in views)
    notes = "; ".join(view.note for view in views if view.note)
    states = ", ".join(f"{counts[state]} {state}" for state in ("free", "busy", "broken") if counts[state])
    return f"{len(views)} {one}{'s' * (len(views) > 1)} {what} present: {states}" + (f" ({notes})" if notes else "")


def verify(plan: SlicePlan, hosts: Sequence[Host], workers: Sequence[int] = ()) -> None:
    """Prove that bundles are whole slices with each worker id once.

    :param workers: the worker ids of a part, where it is one.
    :raises BrokenSliceError: they are not.
    """
    found = defaultdict(list)
    for host in hosts:
        found[host.slice_name].append(host.worker_id)
    due = sorted(workers) or list(range(plan.slice.hosts))
    if len(found) != plan.slice.num_slices or any(sorted(ids) != due for ids in found.values()):
        seen = "; ".join(f"{name}: worker ids {sorted(ids)}" for name, ids in sorted(found.items()))
        raise BrokenSliceError(
            f"The hosts that Ray gave are not {plan.slice.describe()}: {seen}.",
            "Look at the TPU_NAME and TPU_WORKER_ID of these hosts; a slice that lies must be made anew.",
        )


def own_slice(nodes: Sequence[Node]) -> TpuSlice:
    """The one shape that a cluster has, for a job that takes the cluster's own.

    :raises NoSliceError: it has none, or several.
    """
    shapes = {
        str(TpuSlice.parse(_shape_text(node))) for node in nodes if node["Alive"] and TOPOLOGY in node.get("Labels", {})
    }
    if len(shapes) != 1:
        raise NoSliceError(
            f"The task names no slice and its cluster has {', '.join(sorted(shapes)) or 'no TPU at all'}.",
            "Give the task slice=...",
        )
    return TpuSlice.parse(shapes.pop())


def _by_slice(shape: Shape, nodes: Sequence[Node]) -> dict[str, list[Node]]:
    found = defaultdict(list)
    for node in nodes:
        labels = node.get("Labels", {})
        if node["Alive"] and labels.get(POD) == shape.pod_type and labels.get(TOPOLOGY) == shape.topology:
            found[slice_name(shape, node)].append(node)
    # One topology can be there on two machines: 2x4 is one host with 8 chips, or two with 4.
    others = {each.chips_per_host for each in find(shape.generation.name, shape.topology)}
    others.discard(shape.chips_per_host)
    return {
        name: members
        for name, members in found.items()
        if max(node["Resources"].get("TPU", 0) for node in members) not in others
    }


def slice_name(shape: Shape, node: Node) -> str:
    # A single host has no slice name on GKE, and is its own slice.
    return str(node["Labels"].get(NAME, node["NodeID"]) if shape.multi_host else node["NodeID"])


def worker_id(node: Node) -> int:
    return int(node["Labels"].get(WORKER, 0))


def _shape_text(node: Node) -> str:
    """A node's slice as :meth:`TpuSlice.parse` reads it; the machine only matters where a topology is on two."""
    labels, chips = node["Labels"], int(node["Resources"].get("TPU", 0))
    generation = next(g for g in GENERATIONS.values() if labels[POD].startswith(f"{g.ray_version}-"))
    return f"{generation.name}:{labels[TOPOLOGY]}@{generation.machines[chips]}"
