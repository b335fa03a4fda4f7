"""Files of an outbox that were cut off, emptied or edited: never taken for what they do not say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import PathError, RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.storage import attempts, objects

BAD = ["", "{", '{"phase": "SUCC', "[]", '"text"', "7", "\x00\x00", '{"request": {}}', '{"version": 1}']


@pytest.fixture
def first(tmp_path: Path) -> RayRequest:
    return RayRequest(
        identity=Identity(deployment="d", dag_id="digits", task_id="train", run_id="r"),
        kind=Kind.TRAIN,
        slice="v6e:4x4",
        storage=f"file://{tmp_path}/digits",
        limits=Deadlines().since(1000.0),
        code="file:///c.zip",
    )


def put(request: RayRequest, what: str, text: str) -> None:
    objects.write_bytes(request.outbox(what), text.encode())


def second(first: RayRequest) -> RayRequest:
    return replace(first, identity=first.identity.with_attempt(2))


@pytest.mark.parametrize("text", [text for text in BAD if not text.startswith('{"')] + [BAD[2]])
def test_a_mark_of_use_that_was_cut_off_was_meant(first: RayRequest, text: str) -> None:
    """To take it for absent would hand a success to a task that was cleared to do it again."""
    attempts.take(first, "me", "g")
    objects.write_json(first.outbox("result"), Outcome(request=first.name, value={"step": 3}).to_dict())
    put(first, "used", text)
    assert attempts.claim(first, "g") == attempts.Claim(request=second(first))


@pytest.mark.parametrize(
    "again", [None, 7, [], {}, {"spent": {}}, {"total_until": 2000.0}, {"spent": 1, "total_until": "late"}], ids=repr
)
def test_a_loss_that_was_edited_leaves_nothing_to_the_next_attempt(first: RayRequest, again: Any) -> None:
    objects.write_json(first.outbox("used"), {"phase": "LOST", "generation": "g", "again": again})
    assert attempts.claim(first, "g") == attempts.Claim(request=second(first))


@pytest.mark.parametrize("text", BAD)
def test_a_request_that_was_cut_off_is_the_same_attempt_and_is_written_again(first: RayRequest, text: str) -> None:
    attempts.take(first, "me", "g")
    put(first, "request", text)
    assert attempts.claim(first, "g") == attempts.Claim(request=first)
    with pytest.raises(PathError, match="request"):
        attempts.load(first.outbox("request"))
    attempts.take(first, "me", "g")
    assert attempts.load(first.outbox("request")) == first


def test_what_was_submitted_is_found_by_its_name_alone(first: RayRequest) -> None:
    """So that a cluster whose request was cut off is deleted all the same."""
    attempts.take(first, "me", "g")
    put(second(first), "request", "{")
    assert attempts.submitted(first) == [first, second(first)]


def test_a_request_that_holds_another_ones_is_not_followed(first: RayRequest) -> None:
    other = replace(first, identity=replace(first.identity, dag_id="somebody-elses"))
    objects.write_json(first.outbox("request"), other.to_dict())
    assert attempts.claim(first, "g").request == first


def test_a_request_of_a_newer_release_is_refused_and_not_run_again(first: RayRequest) -> None:
    objects.write_json(first.outbox("request"), first.to_dict() | {"version": 2})
    with pytest.raises(RequestError, match="version 2"):
        attempts.claim(first, "g")


@pytest.mark.parametrize("text", BAD)
def test_a_result_that_was_cut_off_proves_nothing(first: RayRequest, text: str) -> None:
    attempts.take(first, "me", "g")
    put(first, "result", text)
    assert attempts.outcome_of(first) is None
    assert attempts.claim(first, "g") == attempts.Claim(request=first, adopted=True)


@pytest.mark.parametrize("text", [text for text in BAD if not text.startswith('{"')])
def test_an_owner_that_cannot_be_read_ends_the_attempt_and_owns_nothing(first: RayRequest, text: str) -> None:
    attempts.take(first, "me", "g")
    put(first, "owner", text)
    claim = attempts.claim(first, "g")
    assert (claim.request, [request for request, _ in claim.stale]) == (second(first), [first])
    with pytest.raises(PathError, match="owner"):
        attempts.is_owned_by(first, "me")


def test_an_owner_that_lacks_its_words_is_nobody(first: RayRequest) -> None:
    objects.write_json(first.outbox("owner"), {"who": "me"})
    assert not attempts.is_owned_by(first, "me")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(what=st.sampled_from(["used", "request", "result", "owner"]), cut=st.floats(0, 1), data=st.data())
def test_no_cut_makes_a_success(first: RayRequest, what: str, cut: float, data: Any) -> None:
    """A failed attempt of which one file is cut anywhere: never a success, and never an error of ours without words."""
    whole = {
        "owner": {"owner": "me", "generation": "g"},
        "request": first.to_dict(),
        "result": Outcome(request=first.name, code="RT301", cause="it raised").to_dict(),
        "used": {"phase": "FAILED", "generation": ""},
    }
    there = {what, *data.draw(st.sets(st.sampled_from(sorted(whole))))}
    for name, value in whole.items():
        text = json.dumps(value) if name in there else "null"
        put(first, name, text[: int(cut * len(text))] if name == what else text)
    claim = attempts.claim(first, "g")
    assert claim.outcome is None
    if what == "used" or "used" in there:
        assert claim.request == second(first)
