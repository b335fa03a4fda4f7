"""The slices of a cluster as they are seen: which are there, whole, idle or held, and by whom. Pure."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_raytpu.model.identity import Identity

_HASH = re.compile(r"-[a-z2-7]{8}$")
"""What :meth:`Identity.remote_name` ends with."""


class SliceCondition(enum.Enum):
    """``BROKEN`` outranks ``BUSY``: what holds a slice that is not whole waits in vain."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds chips of a slice.

    :param job: the job's submission id, or Ray's own id of a driver that nobody submitted.
    :param owner: who asked for the job, where it was one of ours.
    """

    job: str
    owner: Identity | None = None

    def __str__(self) -> str:
        """``digits/train``, with the index of a mapped task."""
        if self.owner is None:
            return f"job {self.job}" if self.job else "somebody"
        index = f"[{self.owner.map_index}]" if self.owner.map_index >= 0 else ""
        return f"{self.owner.dag_id}/{self.owner.task_id}{index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceState:
    """One slice at one moment.

    :param cluster: the cluster's name.
    :param shape: canonical text of this one slice; what its labels say where that is no known shape.
    :param hosts: hosts that a whole one has.
    :param present: worker ids of its living hosts, ascending; an id may be there twice.
    :param fault: why it is broken, empty where it is not.
    :param since: when this condition began, as far as Ray tells, in seconds since the epoch; 0 where it does not. For
        an idle slice, when its last host came up.
    """

    cluster: str
    name: str
    shape: str
    hosts: int
    present: tuple[int, ...]
    condition: SliceCondition
    holders: tuple[Holder, ...] = ()
    fault: str = ""
    since: float = 0.0

    @property
    def cluster_slug(self) -> str:
        """The cluster's name without the hash at its end."""
        return _HASH.sub("", self.cluster)

    @property
    def missing(self) -> tuple[int, ...]:
        """Worker ids with no living host."""
        return tuple(worker for worker in range(self.hosts) if worker not in self.present)

    def to_dict(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "slice": self.name,
            "shape": self.shape,
            "hosts": self.hosts,
            "present": list(self.present),
            "state": self.condition.value,
            "fault": self.fault,
            "holders": [
                {"job": holder.job, "owner": holder.owner.to_dict() if holder.owner else None}
                for holder in self.holders
            ],
            "since": self.since or None,
        }


def of_shape(slices: Iterable[SliceState], shape: str) -> list[SliceState]:
    """Those that have the canonical *shape* of one slice."""
    return [each for each in slices if each.shape == shape]


def idle(slices: Iterable[SliceState]) -> list[SliceState]:
    """Those that are whole and that nobody holds."""
    return [each for each in slices if each.condition is SliceCondition.IDLE]


def describe(slices: Sequence[SliceState], now: float = 0.0) -> str:
    """``2 present, 1 busy (digits/train), 1 broken (host 2 of 4 missing)``.

    :param now: where given, how long each has been so is said as well: ``1 busy (digits/train, 41 min)``.
    """
    if not slices:
        return "none present"
    parts = [f"{len(slices)} present"]
    counts = Counter(each.condition for each in slices)
    for condition in SliceCondition:
        if counts[condition]:
            why = "; ".join(_why(each, now) for each in slices if each.condition is condition)
            parts.append(f"{counts[condition]} {condition.value}" + (f" ({why})" if why.strip("; ") else ""))
    return ", ".join(parts)


def span(seconds: float) -> str:
    """A length of time in one unit, for people: ``50 s``, ``41 min``, ``3 h``."""
    whole = max(0, round(seconds))
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if whole < limit:
            return f"{whole // size} {unit}"
    return f"{whole // 86_400} days"


def _why(each: SliceState, now: float) -> str:
    if each.condition in {SliceCondition.IDLE, SliceCondition.STARTING}:
        return ""
    words = each.fault or ", ".join(dict.fromkeys(map(str, each.holders)))
    return f"{words}, {span(now - each.since)}" if now and each.since else words
