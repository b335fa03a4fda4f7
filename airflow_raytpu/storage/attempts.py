"""Which attempt a try of a task carries out, by the files in the request's outbox.

Airflow counts tries; we count attempts, one per remote object. A try adopts the attempt before it unless that one is
used up, so that a lost worker costs nothing. Besides the four files of the contract, the outbox holds:

- ``owner``: which try looks after the attempt, and in which *generation*. Only the owner may stop it.
- ``beat``: when it was last looked at; work that nobody looks at ends itself.
- ``told``: its metrics were told to Airflow.
- ``tail``: how far the job's log was copied, so that a moved trigger goes on from there.
- ``used``: it has ended, and how; where the place lost it and the same try of Airflow's begins again, ``again`` says
  what that attempt has of this one: what was spent, and when the whole must be over.

A *generation* is one wish of Airflow's for the task: it stays the same over retries, and changes when the task is
cleared or its run is made anew. It tells a retry that lost a success (hand it over) from a wish to do it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_raytpu.model.errors import PathError, RequestError
from airflow_raytpu.model.observation import Progress
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.model.spent import ARGUMENT, Spent
from airflow_raytpu.storage import objects

SUCCEEDED = "SUCCEEDED"

_UNREADABLE = {"phase": "UNREADABLE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a try has to do.

    :param request: the attempt to carry on; as it was submitted, where it was.
    :param adopted: it was submitted before.
    :param outcome: its success, where it is there and was never handed over.
    :param stale: earlier attempts to stop and use up, each with the reason.
    """

    request: RayRequest
    adopted: bool = False
    outcome: Outcome | None = None
    stale: tuple[tuple[RayRequest, str], ...] = ()


def claim(fresh: RayRequest, generation: str) -> Claim:
    """The first attempt that is not used up.

    :param fresh: the request as this try would make it.
    :raises BackendUnreachable: storage gave no answer.
    """
    stale: list[tuple[RayRequest, str]] = []
    again: Mapping[str, Any] = {}
    for attempt in itertools.count(1):
        request = replace(fresh, identity=fresh.identity.with_attempt(attempt))
        used = _mark(request, "used")
        if used and not _lost_success(used, generation):
            again = _again(used, generation)
            continue
        submitted = _submitted(request)
        request = submitted or _goes_on(request, again)
        outcome = outcome_of(request)
        if outcome and outcome.succeeded:
            return Claim(request=request, adopted=True, outcome=outcome, stale=tuple(stale))
        reason = _stale(request, outcome, generation)
        if reason:
            stale.append((request, reason))
            again = {}
            continue
        return Claim(request=request, adopted=bool(submitted), stale=tuple(stale))
    raise AssertionError  # count() does not end


def outcome_of(request: RayRequest) -> Outcome | None:
    """The attempt's result file, where it is there and speaks of this attempt."""
    try:
        data = objects.read_record(request.outbox("result"))
        outcome = Outcome.from_dict(data) if data else None
    except RequestError:
        return None  # cut off: it proves nothing
    return outcome if outcome and outcome.request == request.name else None


def load(uri: str) -> RayRequest:
    """The request that was submitted as *uri*.

    :raises PathError: it is gone, or holds something else.
    """
    request = _read_request(uri)
    if request is None:
        raise PathError(f"{uri} is gone, and with it what was asked for.", "See who cleans up there; clear the task.")
    return request


def _read_request(uri: str) -> RayRequest | None:
    data = objects.read_record(uri)
    try:
        return None if data is None else RayRequest.from_dict(data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PathError(f"{uri} holds no whole request: {error!r}.", "See who writes there; clear the task.") from error


def take(request: RayRequest, owner: str, generation: str) -> None:
    """Say that the try *owner* looks after *request*, and what was asked for."""
    objects.write_json(request.outbox("owner"), {"owner": owner, "generation": generation})
    objects.write_json(request.outbox("request"), request.to_dict())


def is_owned_by(request: RayRequest, owner: str) -> bool:
    """Whether no later try has taken *request* over."""
    found = objects.read_record(request.outbox("owner"))
    return found is not None and found.get("owner") == owner


def release(request: RayRequest, generation: str) -> None:
    """Say that nobody looks after *request* any more: Airflow has its end, and a late kill must not touch it."""
    objects.write_json(request.outbox("owner"), {"owner": "", "generation": generation})


def use(request: RayRequest, phase: str, generation: str = "") -> None:
    """Mark *request* as used up, so that the next try begins a new attempt."""
    objects.write_json(request.outbox("used"), {"phase": phase, "generation": generation})


def lose(request: RayRequest, generation: str, spent: Spent) -> None:
    """Mark *request* as used up by a loss after which the same try begins again, with what was *spent* till then."""
    again = {"spent": spent.to_dict(), "total_until": request.limits.total_until}
    objects.write_json(request.outbox("used"), {"phase": "LOST", "generation": generation, "again": again})


def progress_of(request: RayRequest) -> Progress | None:
    """The newest word of the attempt's own, ``None`` where there is none that is whole.

    :raises BackendUnreachable: storage gave no answer.
    """
    try:
        data = objects.read_record(request.outbox("progress"))
        return Progress.from_dict(data) if data and data.get("request") == request.name else None
    except RequestError:
        return None


def first_to_tell(request: RayRequest) -> bool:
    """Whether nobody has told the metrics of *request* yet: true for one caller only, however many tries there are."""
    return objects.write_bytes(request.outbox("told"), b"{}", if_absent=True)


def submitted(first: RayRequest) -> list[RayRequest]:
    """Every attempt of *first*'s task that was submitted, oldest first."""
    found: list[RayRequest] = []
    for attempt in itertools.count(1):
        stated = replace(first, identity=first.identity.with_attempt(attempt))
        try:
            request = _read_request(stated.outbox("request"))
        except PathError:
            request = stated  # cut off: its name is all that it takes to end it
        if request is None:
            return found
        found.append(request)
    raise AssertionError  # count() does not end


def _lost_success(used: dict[str, Any], generation: str) -> bool:
    # A success is marked before Airflow stores it. A worker that dies between the two leaves a task that is tried
    # again in the same generation; had Airflow known of the success, only a new generation could ask for it.
    return used.get("phase") == SUCCEEDED and used.get("generation") == generation


def _again(used: Mapping[str, Any], generation: str) -> Mapping[str, Any]:
    found = used.get("again")
    if used.get("generation") != generation or not isinstance(found, Mapping):
        return {}
    whole = isinstance(found.get("total_until"), int | float) and isinstance(found.get("spent"), Mapping)
    return found if whole else {}


def _goes_on(request: RayRequest, again: Mapping[str, Any]) -> RayRequest:
    """*request* with what the attempt that was lost before it leaves to it."""
    if not again:
        return request
    limits = request.limits
    left_s = max(0.0, again["total_until"] - limits.asked_at)
    return replace(
        request,
        arguments={**request.arguments, ARGUMENT: again["spent"]},
        limits=replace(limits, total_s=min(limits.total_s, left_s)),
    )


def _stale(request: RayRequest, outcome: Outcome | None, generation: str) -> str:
    if outcome:
        return f"it had failed before Airflow was told: {outcome.cause}"
    owner = _mark(request, "owner")
    if owner == _UNREADABLE:
        return "the file that says whose it is cannot be read"
    if owner and owner.get("generation") != generation:
        return "the task was cleared, or its run made anew, since"
    return ""


def _submitted(request: RayRequest) -> RayRequest | None:
    """The attempt as it was submitted. A file that was cut off is written again; the remote name stays the same."""
    try:
        found = _read_request(request.outbox("request"))
    except PathError:
        return None
    return found if found and found.name == request.name else None


def _mark(request: RayRequest, what: str) -> dict[str, Any] | None:
    """One of our own marks. One that is there but cut off was meant: it counts, and says nothing more."""
    try:
        return objects.read_record(request.outbox(what))
    except PathError:
        return _UNREADABLE
