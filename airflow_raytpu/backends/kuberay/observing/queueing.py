"""Where a request stands in Kueue's queues (workloads of v1beta1 and v1beta2). Pure.

Suspended is waiting: Kueue takes the quota away and gives it back, and neither is an end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_raytpu.backends.kuberay.observing.causes import Trouble
from airflow_raytpu.backends.kuberay.observing.reading import (
    Object,
    at,
    condition,
    created,
    line,
    moment,
    name,
    number,
    owned_by,
    part,
    parts,
    text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Its place.

    :param admitted: it may run.
    :param words: for people, such as ``queue user-queue, 3 ahead: insufficient unused quota ...``.
    """

    admitted: bool
    words: str
    troubles: tuple[Trouble, ...] = ()
    admitted_at: float = 0.0


def suspended(obj: Object) -> str:
    """What is known of something suspended whose workload nobody has seen: ``suspended in queue user-queue``."""
    queue = text(obj, "metadata", "labels", "kueue.x-k8s.io/queue-name")
    return line(f"suspended in queue {queue}" if queue else "suspended")


def standing(workloads: Sequence[Object], owners: set[str]) -> Standing | None:
    """How the newest workload of one of *owners* (uids) stands; ``None`` where Kueue has none.

    An elastic job that wants more has a second one, and runs on the first.
    """
    ours = [each for each in workloads if owned_by(each, owners) and not condition(each, "Finished").holds]
    if not ours:
        return None
    workload = max(ours, key=lambda each: (condition(each, "Admitted").holds is True, created(each), name(each)))
    admitted = condition(workload, "Admitted")
    if admitted.holds:
        return Standing(admitted=True, words=_queue(workload), admitted_at=admitted.since)
    return Standing(
        admitted=False,
        words=line(f"{_queue(workload)}{_ahead(workload, workloads)}: {_why(workload)}"),
        troubles=tuple(_troubles(workload)),
    )


def _why(workload: Object) -> str:
    reserved, evicted = condition(workload, "QuotaReserved"), condition(workload, "Evicted")
    if at(workload, "spec", "active") is False:
        return f"deactivated: {evicted.message or evicted.reason}"
    if reserved.holds:
        return "quota reserved; " + ("; ".join(_checks(workload)) or "admission is due")
    said = [f"evicted ({evicted.reason}): {evicted.message}"] if evicted.holds else []
    if reserved.message and reserved.message != evicted.message:
        said.append(reserved.message)
    again = moment(workload, "status", "requeueState", "requeueAt")
    if again:
        said.append(f"queued again at {text(workload, 'status', 'requeueState', 'requeueAt')}")
    return "; ".join(said) or "not looked at by Kueue yet"


def _checks(workload: Object) -> Iterator[str]:
    """Admission checks that are not ready, such as a ProvisioningRequest for queued capacity."""
    for check in parts(workload, "status", "admissionChecks"):
        if text(check, "state") != "Ready":
            words = filter(None, (text(check, "state"), text(check, "message")))
            yield line(f"admission check {text(check, 'name')} {', '.join(words)}", 200)


def _troubles(workload: Object) -> Iterator[Trouble]:
    who = f"queue {_local(workload)}"
    evicted, reserved = condition(workload, "Evicted"), condition(workload, "QuotaReserved")
    if at(workload, "spec", "active") is False:
        since = evicted.since or created(workload)
        yield Trouble(reason="Deactivated", message=evicted.message or evicted.reason, who=who, since=since)
    if reserved.holds is False:
        # The message is about now; the condition has not changed since it was first written.
        yield Trouble(reason=reserved.reason, message=reserved.message, who=who, since=reserved.since)
    for check in parts(workload, "status", "admissionChecks"):
        if text(check, "state") == "Rejected":
            yield Trouble(
                reason="AdmissionCheckRejected",
                message=f"{text(check, 'name')}: {text(check, 'message')}",
                who=who,
                since=moment(check, "lastTransitionTime"),
            )


def _ahead(workload: Object, workloads: Sequence[Object]) -> str:
    """``, 3 ahead``: those in the same queue that come first, by priority and then by age, as Kueue takes them."""
    if condition(workload, "QuotaReserved").holds:
        return ""
    queue, own = _local(workload), _order(workload)
    ahead = sum(_local(each) == queue and _order(each) < own and _waits(each) for each in workloads)
    return f", {ahead} ahead" if ahead else ""


def _waits(workload: Object) -> bool:
    """Kept cheap, as is the order: each of a thousand tasks that wait looks at a thousand workloads."""
    for each in parts(workload, "status", "conditions"):
        if each.get("type") in ("QuotaReserved", "Finished") and each.get("status") == "True":
            return False
    return at(workload, "spec", "active") is not False


def _order(workload: Object) -> tuple[int, str, str]:
    # Times as text: the API server writes them all alike, and so they sort.
    metadata = part(workload, "metadata")
    return -number(workload, "spec", "priority"), text(metadata, "creationTimestamp"), text(metadata, "uid")


def _local(workload: Object) -> str:
    return text(workload, "spec", "queueName")


def _queue(workload: Object) -> str:
    return f"queue {_local(workload)}".strip()
