"""What Ray's state API says of nodes and of who holds what (Ray 2.60), put together into slices. Pure.

Ray's own count of ready slices is never asked: it takes a fully held slice for a ready one (2.60.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_raytpu.model.errors import SliceShapeError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.slices import Holder, SliceCondition, SliceState
from airflow_raytpu.placement.catalogue import GENERATIONS
from airflow_raytpu.placement.topology import TpuSlice

OWNER = "raytpu.owner"
"""Key of a job's metadata that says who asked for it."""

Row = Mapping[str, Any]

_NAME, _WORKER, _TOPOLOGY, _ACCELERATOR = (
    "ray.io/tpu-slice-name",
    "ray.io/tpu-worker-id",
    "ray.io/tpu-topology",
    "ray.io/accelerator-type",
)
_HOLDS_NOTHING = {"PENDING", "REMOVED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Rows as Ray gives them, each list read right after the one before it.

    :param nodes: of the living and the dead.
    :param groups: placement groups that were not removed.
    :param actors: those that live or are being created.
    :param tasks: those that run.
    """

    nodes: Sequence[Row] = ()
    groups: Sequence[Row] = ()
    actors: Sequence[Row] = ()
    tasks: Sequence[Row] = ()
    jobs: Sequence[Row] = ()


@dataclass(slots=True)
class _Part:
    """One slice while its rows are collected."""

    living: list[Row] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Hold:
    """Chips or a head of one node, held by a job (Ray's id) from *since* on, 0 where Ray does not say."""

    node: str
    job: str
    since: float


def slices(cluster: str, listing: Listing, expected: Mapping[str, TpuSlice] | None = None) -> list[SliceState]:
    """The slices of *cluster*, by name.

    A slice none of whose hosts lives is gone, and is left out unless it is *expected*.

    :param expected: slices that should be there, by name, where the backend knows.
    """
    parts = _parts(listing.nodes)
    wanted = expected or {}
    names = [name for name, part in parts.items() if part.living or name in wanted]
    holds = list(_holds(listing))
    jobs = {str(row.get("job_id")): row for row in listing.jobs}
    return [
        _state(cluster, name, parts.get(name, _Part()), wanted.get(name), holds, jobs)
        for name in sorted({*names, *wanted})
    ]


def unseen(
    cluster: str, expected: Mapping[str, TpuSlice], condition: SliceCondition, fault: str = ""
) -> list[SliceState]:
    """The slices of a cluster that cannot be asked, or not yet."""
    return [
        SliceState(
            cluster=cluster,
            name=name,
            shape=str(shape),
            hosts=shape.hosts,
            present=(),
            condition=condition,
            fault=fault,
        )
        for name, shape in sorted(expected.items())
    ]


def _parts(nodes: Iterable[Row]) -> dict[str, _Part]:
    parts: dict[str, _Part] = {}
    for node in nodes:
        labels = node.get("labels") or {}
        if _TOPOLOGY in labels:
            # A single host has no slice name on GKE, and is a slice by itself.
            part = parts.setdefault(str(labels.get(_NAME) or node.get("node_ip")), _Part())
            (part.living if node.get("state") == "ALIVE" else part.dead).append(node)
    return parts


def _state(
    cluster: str,
    name: str,
    part: _Part,
    shape: TpuSlice | None,
    holds: Sequence[_Hold],
    jobs: Mapping[str, Row],
) -> SliceState:
    shape = shape or _shape(part.living)
    present = tuple(sorted(_worker(node) for node in part.living))
    nodes = {node.get("node_id") for node in part.living}
    held = [hold for hold in holds if hold.node in nodes]
    fault = _fault(part, shape, present)
    if fault:
        condition, since = SliceCondition.BROKEN, _broken_since(part, present)
    elif held:
        # An actor outside groups has no time of its own in Ray's list: then its job's is the nearest.
        times = [hold.since or _milliseconds(jobs.get(hold.job, {}).get("start_time")) for hold in held]
        condition, since = SliceCondition.BUSY, min((time for time in times if time), default=0.0)
    else:
        ups = [_milliseconds(node.get("start_time_ms")) for node in part.living]
        condition, since = SliceCondition.IDLE, max(ups, default=0.0)
    return SliceState(
        cluster=cluster,
        name=name,
        shape=str(shape) if shape else _words(part.living),
        hosts=shape.hosts if shape else len(part.living),
        present=present,
        condition=condition,
        holders=tuple(_holder(job, jobs) for job in dict.fromkeys(hold.job for hold in held)),
        fault=fault,
        since=since,
    )


def _fault(part: _Part, shape: TpuSlice | None, present: tuple[int, ...]) -> str:
    """What keeps a slice from being whole, without a full stop; empty where it is whole."""
    if shape is None:
        return f"no known shape: {_words(part.living)}"
    due = range(shape.hosts)
    if shape.hosts == 1 and present and present != (0,):
        # The TPU webhook counts on where a single host is made anew, and libtpu then waits for a host 0.
        return f"worker id {', '.join(map(str, present))} where 0 is due"
    missing = [str(worker) for worker in due if worker not in present]
    if missing:
        return f"host{'s' * (len(missing) > 1)} {', '.join(missing)} of {shape.hosts} missing"
    if list(present) != list(due):
        return f"worker ids {', '.join(map(str, present))} where 0-{shape.hosts - 1} are due"
    for node in part.living:
        if _chips(node) != shape.chips_per_host:
            return f"host {_worker(node)} has {_chips(node)} chips where {shape.chips_per_host} are due"
    return ""


def _broken_since(part: _Part, present: tuple[int, ...]) -> float:
    """When the last of the missing hosts died; 0 where none of them ever lived."""
    ends = [_milliseconds(node.get("end_time_ms")) for node in part.dead if _worker(node) not in present]
    return max(ends, default=0.0)


def _shape(living: Sequence[Row]) -> TpuSlice | None:
    """The shape that the hosts' labels and chips say; ``None`` where there is no such shape."""
    if not living:
        return None
    labels = living[0].get("labels") or {}
    named = [each for each in GENERATIONS.values() if each.ray_type == labels.get(_ACCELERATOR)]
    # The machine type decides where a topology exists on two; one host that lacks chips must not change it.
    machine = named[0].machines.get(max(_chips(node) for node in living)) if named else None
    try:
        return TpuSlice(named[0].name, labels[_TOPOLOGY], 1, machine) if machine else None
    except SliceShapeError:
        return None


def _words(living: Sequence[Row]) -> str:
    labels = (living[0].get("labels") or {}) if living else {}
    return f"{labels.get(_ACCELERATOR, 'TPU')} {labels.get(_TOPOLOGY, '')}".strip()


def _worker(node: Row) -> int:
    text = str((node.get("labels") or {}).get(_WORKER, "0"))
    return int(text) if text.isdigit() else -1


def _chips(node: Row) -> int:
    return round(float((node.get("resources_total") or {}).get("TPU", 0)))


def _holds(listing: Listing) -> Iterator[_Hold]:
    for group in listing.groups:
        if group.get("state") not in _HOLDS_NOTHING:
            since = _created(group.get("stats") or {})
            for bundle in group.get("bundles") or ():
                if _takes(bundle.get("unit_resources")):
                    yield _Hold(str(bundle.get("node_id")), str(group.get("creator_job_id")), since)
    for row in (*listing.actors, *listing.tasks):
        # What runs in a group uses what the group holds already.
        if _takes(row.get("required_resources")) and not row.get("placement_group_id"):
            since = _milliseconds(row.get("start_time_ms"))
            yield _Hold(str(row.get("node_id")), str(row.get("job_id")), since)


def _takes(resources: Row | None) -> bool:
    """Whether chips are among them, or the head of a slice, which alone keeps others off it."""
    return any(
        amount > 0 and (name == "TPU" or (name.startswith("TPU-") and name.endswith("-head")))
        for name, amount in (resources or {}).items()
    )


def _created(stats: Row) -> float:
    asked, took = stats.get("creation_request_received_ns"), stats.get("end_to_end_creation_latency_us")
    return int(asked) / 1e9 + int(took or 0) / 1e6 if asked else 0.0


def _milliseconds(value: Any) -> float:
    return float(value) / 1000 if value else 0.0


def _holder(job: str, jobs: Mapping[str, Row]) -> Holder:
    row = jobs.get(job, {})
    return Holder(
        job=str(row.get("submission_id") or job), owner=Identity.from_owner((row.get("metadata") or {}).get(OWNER, ""))
    )
