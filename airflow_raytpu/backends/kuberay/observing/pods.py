"""One pod of a Ray cluster: which host of which slice it is, whether it is ready, and what ails it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_raytpu.backends.kuberay.observing import events as happenings
from airflow_raytpu.backends.kuberay.observing.causes import Trouble
from airflow_raytpu.backends.kuberay.observing.events import Event
from airflow_raytpu.backends.kuberay.observing.reading import (
    Condition,
    Object,
    condition,
    created,
    going,
    line,
    moment,
    name,
    number,
    part,
    parts,
    text,
    uid,
)

CLUSTER = "ray.io/cluster"
_NODE_TYPE, _GROUP, _REPLICA, _HOST = (
    "ray.io/node-type",
    "ray.io/group",
    "ray.io/worker-group-replica-index",
    "ray.io/replica-host-index",
)
UNSCHEDULABLE = "Unschedulable"
_CONTAINER_REASONS_OF_COURSE = {"", "ContainerCreating", "PodInitializing", "Completed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod.

    :param replica: which slice of its group it belongs to, -1 where its labels do not say.
    :param host: which host of that slice it is, -1 likewise; a slice of one host has no such label.
    :param ended: it will run no more: it failed, succeeded, or is being deleted.
    :param started_at: when it was made or its Ray container last started, in seconds since the epoch.
    :param gated: it waits for a scheduling gate, Kueue's as a rule.
    :param unschedulable: the scheduler's words.
    :param down: its Ray container has ended, so what ran in it has, too.
    :param lost: why it was taken away or ended, for people.
    """

    name: str
    uid: str
    head: bool
    group: str
    replica: int
    host: int
    ready: bool
    scheduled: bool
    ended: bool
    down: bool
    started_at: float
    gated: bool = False
    unschedulable: str = ""
    lost: str = ""
    troubles: tuple[Trouble, ...] = ()


def read(raw: Object, events: Sequence[Event]) -> Pod:
    """:param events: all of them, newest first."""
    labels = part(raw, "metadata", "labels")
    phase, placed = text(raw, "status", "phase"), condition(raw, "PodScheduled")
    ray = _ray_container(raw)
    ended = phase in {"Failed", "Succeeded"} or going(raw)
    down = phase in {"Failed", "Succeeded"} or bool(part(ray, "state", "terminated"))
    ready = phase == "Running" and condition(raw, "Ready").holds is True and not ended and not down
    scheduled = bool(text(raw, "spec", "nodeName")) or placed.holds is True
    gated = placed.reason == "SchedulingGated"
    own = happenings.of_object(events, "Pod", name(raw), uid(raw))
    return Pod(
        name=name(raw),
        uid=uid(raw),
        head=text(labels, _NODE_TYPE) == "head",
        group=text(labels, _GROUP),
        replica=number(labels, _REPLICA, default=-1),
        host=number(labels, _HOST, default=-1),
        ready=ready,
        scheduled=scheduled,
        ended=ended,
        down=down,
        started_at=max(created(raw), moment(ray, "state", "running", "startedAt")),
        gated=gated,
        unschedulable="" if scheduled or gated else _unschedulable(placed.message, own),
        lost=_lost(raw, ray),
        troubles=() if ready or ended else tuple(_troubles(raw, own, placed)),
    )


def _ray_container(raw: Object) -> Object:
    """Its status: Ray's is the first container of the specification, but statuses come in the order of their names."""
    first = text(next(iter(parts(raw, "spec", "containers")), {}), "name")
    statuses = parts(raw, "status", "containerStatuses")
    return next((each for each in statuses if text(each, "name") == first), statuses[0] if len(statuses) == 1 else {})


def _unschedulable(message: str, own: Sequence[Event]) -> str:
    told = [each.message for each in own if each.reason == happenings.SCHEDULER]
    return message or next(iter(told), "")


def _lost(raw: Object, ray: Object) -> str:
    """``Evicted: The node was low on memory``, ``OOMKilled (exit code 137)``; empty where nothing ended."""
    target = condition(raw, "DisruptionTarget")
    if target.holds:
        return line(": ".join(filter(None, (target.reason, target.message))))
    if text(raw, "status", "reason"):
        return line(": ".join(filter(None, (text(raw, "status", "reason"), text(raw, "status", "message")))))
    return _exit(part(ray, "state", "terminated")) or _exit(part(ray, "lastState", "terminated"))


def _exit(ended: Object) -> str:
    if not ended:
        return ""
    why = ": ".join(filter(None, (text(ended, "reason"), text(ended, "message"))))
    return line(f"{why or 'ended'} (exit code {number(ended, 'exitCode')})")


def _troubles(raw: Object, own: Sequence[Event], placed: Condition) -> Iterator[Trouble]:
    since = placed.since or created(raw)
    if placed.reason == UNSCHEDULABLE:
        yield Trouble(reason=UNSCHEDULABLE, message=placed.message, who=f"pod {name(raw)}", since=since)
    for kind in ("initContainerStatuses", "containerStatuses"):
        for status in parts(raw, "status", kind):
            waiting = part(status, "state", "waiting")
            reason = text(waiting, "reason")
            if reason not in _CONTAINER_REASONS_OF_COURSE:
                yield Trouble(
                    reason=reason,
                    message=_why(reason, text(waiting, "message"), status, own),
                    who=f"container {text(status, 'name')} of pod {name(raw)}",
                    since=since,
                    restarts=number(status, "restartCount"),
                )
    yield from happenings.standing([each for each in own if each.reason not in {"Failed", "BackOff"}])


def _why(reason: str, message: str, status: Object, own: Sequence[Event]) -> str:
    """What a container waits for. A back-off alone names no cause: the pull's event or the last exit does."""
    if reason == "ImagePullBackOff":
        told = [each.message for each in own if each.reason == "Failed" and "pull" in each.message]
        return next(iter(told), message)
    if reason == "CrashLoopBackOff":
        return _exit(part(status, "lastState", "terminated")) or message
    return message
