"""Kubernetes events, put in order and into words. Pure.

An event is only as good as it is new: what an object's newest events say counts, whatever order they come in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_raytpu.backends.kuberay.observing.causes import Trouble
from airflow_raytpu.backends.kuberay.observing.reading import Object, created, line, moment, part, text

SCHEDULER, AUTOSCALER = "FailedScheduling", ("NotTriggerScaleUp", "TriggeredScaleUp", "FailedScaleUp")
TAKEN = ("Preempted", "Evicted", "NodeNotReady", "TaintManagerEviction", "NodeShutdown")
"""What happens to pods that ran; such an event is all that is left of one that is gone."""
_SHARE = re.compile(r"(\d+) (?:node\(s\) )?((?:[^,.{]|\{[^}]*\}|\.(?!\s|$))+)")
_SCALED = re.compile(r"(?:instanceGroups/)?([\w.-]+) (\d+->\d+ \(max: \d+\))")


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """One event.

    :param last: when it was last seen, in seconds since the epoch; ``first``: when it was first.
    :param about: name of the object, ``uid`` its uid.
    """

    last: float
    reason: str
    message: str
    kind: str
    about: str
    uid: str
    first: float
    warning: bool

    def is_of(self, kind: str, name: str, uid: str) -> bool:
        """It is about this object. One that had the same name before it is another object."""
        return self.kind == kind and (self.uid == uid if self.uid and uid else bool(name) and self.about == name)

    @property
    def trouble(self) -> Trouble:
        return Trouble(
            reason=self.reason, message=self.message, who=f"{self.kind} {self.about}".strip(), since=self.first
        )


def newest_first(events: Iterable[Object]) -> list[Event]:
    return sorted(map(_event, events), reverse=True)


def of_object(events: Sequence[Event], kind: str, name: str, uid: str) -> list[Event]:
    """Those about one object."""
    return [each for each in events if each.is_of(kind, name, uid)]


def standing(events: Sequence[Event]) -> list[Trouble]:
    """The troubles that an object's newest events tell of: what a later event has overtaken is over.

    The scheduler's and the autoscaler's are left out: they only say where a pod stands.
    """
    own = [each for each in events if each.reason not in (SCHEDULER, *AUTOSCALER)]
    newest = max((each.last for each in own), default=0.0)
    return [each.trouble for each in own if each.warning and each.last >= newest]


def scheduling(message: str) -> str:
    """``Insufficient google.com/tpu on 12 nodes, untolerated taint {...} on 3 nodes``, of the scheduler's message."""
    rest = message[:4000].partition("nodes are available:")[2].partition("preemption:")[0]
    shares = _SHARE.findall(rest)
    if not shares:
        return line(message)
    # What is short of TPUs is what the reader waits for; the rest are nodes that never were meant.
    shares.sort(key=lambda share: ("google.com/tpu" not in share[1] or "taint" in share[1], -int(share[0][:9])))
    return line(", ".join(f"{_short(why)} on {count} node{'s' * (count != '1')}" for count, why in shares))


def autoscaling(events: Sequence[Event]) -> str:
    """``autoscaler: NotTriggerScaleUp, 1 max node group size reached``; empty where it has said nothing."""
    for each in events:
        if each.reason in AUTOSCALER:
            return f"autoscaler: {each.reason}, {_scaled(each)}"
    return ""


def _scaled(event: Event) -> str:
    if event.reason == "TriggeredScaleUp":
        groups = _SCALED.findall(event.message[:4000])
        if groups:
            return line(", ".join(f"{group} {change}" for group, change in groups))
    plain = re.sub(r"^pod (didn't trigger|triggered) scale-up:? *", "", event.message[:4000], flags=re.IGNORECASE)
    return line(plain)


def _short(why: str) -> str:
    plain = re.sub(r"^(had|didn't have|were|was) ", "", why.strip().rstrip("."))
    return plain.replace("didn't match Pod's node affinity/selector", "node selector or affinity mismatch")


def _event(raw: Object) -> Event:
    about = part(raw, "involvedObject") or part(raw, "regarding")
    times = [
        moment(raw, "series", "lastObservedTime"),
        moment(raw, "lastTimestamp"),
        moment(raw, "eventTime"),
        moment(raw, "firstTimestamp"),
        created(raw),
    ]
    known = [time for time in times if time]
    return Event(
        last=max(known, default=0.0),
        reason=text(raw, "reason"),
        message=text(raw, "message") or text(raw, "note"),
        kind=text(about, "kind"),
        about=text(about, "name"),
        uid=text(about, "uid"),
        first=min(known, default=0.0),
        warning=text(raw, "type") != "Normal",
    )
