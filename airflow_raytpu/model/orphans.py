"""What nobody looks after any more: remote objects of ours whose owner gives no sign of life."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.slices import span

SKEW_S = 300.0
"""How far the clock that wrote a sign of life may be off from the one that reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """One object at the moment when it was found.

    :param kind: ``RayJob``, ``RayCluster``, ``RayService``, ``cluster`` or ``folder``, for people.
    :param name: its name; with *uid*, which no later object shares, it is this one and no other.
    :param owner: who asked for it.
    :param last_sign: when somebody last looked at it, in seconds since the epoch.
    :param why: what it is besides silent, for people: ``ended``, ``its supervisor died``.
    """

    kind: str
    name: str
    uid: str
    owner: Identity
    last_sign: float
    why: str

    def silent_s(self, now: float) -> float:
        return max(0.0, now - self.last_sign)

    def in_words(self, now: float) -> str:
        """``RayJob digits-train-x of digits/train (manual__1, attempt 2): running, not looked at for 3 h``."""
        silence = span(self.silent_s(now))
        return f"{self.kind} {self.name} of {_whose(self.owner)}: {self.why}, not looked at for {silence}"


class Fate(enum.Enum):
    """What became of an orphan."""

    FOUND = "found"
    """Only looked at."""
    REAPED = "reaped"
    SPARED = "spared"
    """Somebody looks after it after all."""
    RESISTS = "resists"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """An orphan and what became of it.

    :param says: why it was spared, or how it resists; empty otherwise.
    """

    orphan: Orphan
    fate: Fate
    says: str = ""

    def in_words(self, now: float) -> str:
        words = f"{self.fate.value} {self.orphan.in_words(now)}"
        return f"{words}; {self.says}" if self.says else words

    def to_dict(self, now: float) -> dict[str, Any]:
        return {
            "kind": self.orphan.kind,
            "name": self.orphan.name,
            "uid": self.orphan.uid,
            "owner": self.orphan.owner.to_dict(),
            "silent_s": round(self.orphan.silent_s(now)),
            "why": self.orphan.why,
            "fate": self.fate.value,
            "says": self.says,
        }


def is_silent(last_sign: float, now: float, ttl_s: float, older_than_s: float) -> bool:
    """Whether nobody has looked for longer than the object may live, whatever the two clocks make of it.

    A sign of life from the future is one: the clock that wrote it is ahead.

    :param ttl_s: what its owner gave it; 0 where it can never serve again.
    :param older_than_s: what the reaper gives it.
    """
    return now - last_sign > max(ttl_s + SKEW_S, older_than_s)


def _whose(owner: Identity) -> str:
    if not owner.dag_id:
        return f"all who name it {owner.task_id}"
    index = f"[{owner.map_index}]" if owner.map_index >= 0 else ""
    return f"{owner.dag_id}/{owner.task_id}{index} ({owner.run_id}, attempt {owner.attempt})"
