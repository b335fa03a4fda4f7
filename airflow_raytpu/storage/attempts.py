"""Which attempt a try of a task carries out, by the files in the request's outbox.

Airflow counts tries; we count attempts, one per remote object. A try adopts the attempt before it unless that one is
used up, so that a lost worker costs nothing. Besides the four files of the contract, the outbox holds:

- ``owner``: which try looks after the attempt, and in which *generation*. Only the owner may stop it.
- ``tail``: how far the job's log was copied, so that a moved trigger goes on from there.

A *generation* is one wish of Airflow's for the task: it stays the same over retries, and changes when the task is
cleared or its run is made anew. It tells a retry that lost a success (hand it over) from a wish to do it again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.storage import objects

SUCCEEDED = "SUCCEEDED"


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
    for attempt in itertools.count(1):
        request = replace(fresh, identity=fresh.identity.with_attempt(attempt))
        used = objects.read_json(request.outbox("used"))
        if used and not _lost_success(used, generation):
            continue
        submitted = objects.read_json(request.outbox("request"))
        if submitted:
            request = RayRequest.from_dict(submitted)
        outcome = outcome_of(request)
        if outcome and outcome.succeeded:
            return Claim(request=request, adopted=True, outcome=outcome, stale=tuple(stale))
        reason = _stale(request, outcome, generation)
        if reason:
            stale.append((request, reason))
            continue
        return Claim(request=request, adopted=bool(submitted), stale=tuple(stale))
    raise AssertionError  # count() does not end


def outcome_of(request: RayRequest) -> Outcome | None:
    """The attempt's result file, where it is there and speaks of this attempt."""
    data = objects.read_json(request.outbox("result"))
    outcome = Outcome.from_dict(data) if data else None
    return outcome if outcome and outcome.request == request.name else None


def load(uri: str) -> RayRequest:
    """The request that was submitted as *uri*.

    :raises PathError: it is gone.
    """
    data = objects.read_json(uri)
    if data is None:
        raise PathError(f"{uri} is gone, and with it what was asked for.", "See who cleans up there; clear the task.")
    return RayRequest.from_dict(data)


def take(request: RayRequest, owner: str, generation: str) -> None:
    """Say that the try *owner* looks after *request*, and what was asked for."""
    objects.write_json(request.outbox("owner"), {"owner": owner, "generation": generation})
    objects.write_json(request.outbox("request"), request.to_dict())


def is_owned_by(request: RayRequest, owner: str) -> bool:
    """Whether no later try has taken *request* over."""
    found = objects.read_json(request.outbox("owner"))
    return bool(found) and found["owner"] == owner


def release(request: RayRequest, generation: str) -> None:
    """Say that nobody looks after *request* any more: Airflow has its end, and a late kill must not touch it."""
    objects.write_json(request.outbox("owner"), {"owner": "", "generation": generation})


def use(request: RayRequest, phase: str, generation: str = "") -> None:
    """Mark *request* as used up, so that the next try begins a new attempt."""
    objects.write_json(request.outbox("used"), {"phase": phase, "generation": generation})


def submitted(first: RayRequest) -> list[RayRequest]:
    """Every attempt of *first*'s task that was submitted, oldest first."""
    found: list[RayRequest] = []
    for attempt in itertools.count(1):
        data: Any = objects.read_json(replace(first, identity=first.identity.with_attempt(attempt)).outbox("request"))
        if data is None:
            return found
        found.append(RayRequest.from_dict(data))
    raise AssertionError  # count() does not end


def _lost_success(used: dict[str, Any], generation: str) -> bool:
    # A success is marked before Airflow stores it. A worker that dies between the two leaves a task that is tried
    # again in the same generation; had Airflow known of the success, only a new generation could ask for it.
    return used.get("phase") == SUCCEEDED and used.get("generation") == generation


def _stale(request: RayRequest, outcome: Outcome | None, generation: str) -> str:
    if outcome:
        return f"it had failed before Airflow was told: {outcome.cause}"
    owner = objects.read_json(request.outbox("owner"))
    if owner and owner["generation"] != generation:
        return "the task was cleared, or its run made anew, since"
    return ""
