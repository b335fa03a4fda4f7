"""In words, what a RayCluster still waits for or has lost, for the log of whoever waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_raytpu.backends.kuberay.observing import events as happenings
from airflow_raytpu.backends.kuberay.observing import pods as podding
from airflow_raytpu.backends.kuberay.observing.anatomy import Anatomy
from airflow_raytpu.backends.kuberay.observing.events import Event
from airflow_raytpu.backends.kuberay.observing.reading import Object, behind, created, number, part, text, uid
from airflow_raytpu.model.slices import span

_SILENT_S = 90.0
"""Without a word from the operator for this long, it is said that it may not run: its first word takes a second."""


def silence(obj: Object, events: Sequence[Event], now: float) -> str:
    """That nobody has taken up *obj*, where that is so; empty else."""
    made = created(obj)
    if part(obj, "status") or not made or now - made < _SILENT_S:
        return ""
    if any(each.uid == uid(obj) for each in events):
        return ""
    manager = text(obj, "spec", "managedBy")
    if manager not in ("", "ray.io/kuberay-operator"):
        return f"left to {manager} for {span(now - made)}"
    where = text(obj, "metadata", "namespace")
    return f"no word from the KubeRay operator for {span(now - made)}: it may not run, or not watch namespace {where}"


def missing(seen: Anatomy, now: float) -> str:
    """What a cluster that is not ready waits for."""
    quiet = silence(seen.raw, seen.events, now)
    if quiet:
        return quiet
    return "; ".join(filter(None, (_head(seen), _hosts(seen))))


def _head(seen: Anatomy) -> str:
    head = seen.head
    if head is None:
        return "the head pod is gone" if seen.provisioned else ""
    if head.ready:
        return ""
    if seen.provisioned and head.lost:
        return f"the head pod was lost: {head.lost}"
    why = happenings.scheduling(head.unschedulable) if head.unschedulable else ""
    why = why or "; ".join(dict.fromkeys(each.words for each in head.troubles)) or head.lost
    return f"head pod not ready{': ' if why else ''}{why}"


def _hosts(seen: Anatomy) -> str:
    """``0 of 4 hosts scheduled: Insufficient google.com/tpu on 12 nodes; autoscaler: NotTriggerScaleUp, ...``."""
    counted = seen.tpu or seen.others
    due = sum(each.hosts for each in counted)
    scheduled, ready = sum(len(each.scheduled) for each in counted), sum(len(each.ready) for each in counted)
    why = "; ".join(_reasons(seen))
    if ready == due:
        return why
    word, count = ("scheduled", scheduled) if scheduled < due else ("ready", ready)
    return f"{count} of {due} host{'s' * (due != 1)} {word}{': ' if why else ''}{why}"


def _reasons(seen: Anatomy) -> list[str]:
    """Why hosts are missing, each once, the newest first."""
    workers = [pod for pod in seen.pods if not pod.head]
    unscheduled = [happenings.scheduling(pod.unschedulable) for pod in workers if pod.unschedulable]
    gated = [f"{sum(pod.gated for pod in workers)} pods gated"] if any(pod.gated for pod in workers) else []
    troubles = [each for pod in workers for each in pod.troubles if each.reason != podding.UNSCHEDULABLE]
    troubles += seen.own_troubles()
    told: dict[str, str] = {}
    # One message for each reason: the newest, and of several pods' the one that says most.
    for each in sorted(troubles, key=lambda each: (-each.since, -len(each.message), each.reason, each.message)):
        told.setdefault(each.reason, each.words)
    ended = sorted(pod.lost for pod in workers if pod.ended and pod.lost)
    scaling = happenings.autoscaling(seen.events) if unscheduled else ""
    words = [*sorted(unscheduled), *gated, *told.values(), *ended, scaling]
    return [each for each in dict.fromkeys(words) if each]


def lacking(seen: Anatomy) -> str:
    """What a cluster that was ready lacks now."""
    faults = [each.fault for each in seen.slices if each.fault]
    if not faults:
        stale = behind(seen.raw) and number(seen.raw, "status", "observedGeneration")
        return "KubeRay has not taken up the newest change of the cluster yet" if stale else ""
    whole = sum(each.whole for each in seen.tpu)
    counts = f"{whole} of {len(seen.tpu)} slices whole: " if seen.tpu else ""
    taken = next((each for each in seen.events if each.reason in happenings.TAKEN and each.warning), None)
    why = [*_reasons(seen), *([taken.trouble.words] if taken else [])]
    return counts + "; ".join(dict.fromkeys([*faults[:4], *why]))
