"""What the API server's refusals mean: one table."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.backends.kuberay.refusals import (
    Answer,
    Asked,
    Conflict,
    Exists,
    Expired,
    missing_name,
    other_uid,
    passes,
    refusal,
)
from airflow_raytpu.backends.kuberay.resources import NODES, PODS, RAYJOBS, WORKLOADS, Resource
from airflow_raytpu.model.errors import (
    BackendUnreachable,
    ForbiddenError,
    ManifestError,
    NotInstalledError,
    RayTpuError,
)


def status(code: int, message: str, reason: str = "", **details: Any) -> Answer:
    return Answer(
        code, json.dumps({"kind": "Status", "code": code, "message": message, "reason": reason, "details": details})
    )


def asked(verb: str = "create", resource: Resource = RAYJOBS, name: str = "a", **more: Any) -> Asked:
    return Asked(verb=verb, resource=resource, namespace="ml", name=name, **more)


UID = "Precondition failed: UID in precondition: x, UID in object meta: y"

CASES: list[tuple[Answer, type[RayTpuError], str]] = [
    (status(409, 'rayjobs.ray.io "a" already exists', "AlreadyExists"), Exists, r"a is there already\."),
    (status(409, 'object is being deleted: x "a" already exists', "AlreadyExists"), Exists, "and is being deleted"),
    (status(409, "the object has been modified", "Conflict"), Conflict, "has been modified"),
    (status(410, "too old resource version: 1 (9)", "Expired"), Expired, "too old"),
    (status(401, "Unauthorized", "Unauthorized"), ForbiddenError, "does not know who we are"),
    (
        status(403, 'rayjobs.ray.io is forbidden: User "u" cannot create resource "rayjobs" in API group "ray.io"'),
        ForbiddenError,
        r'u may not create rayjobs\.ray\.io in namespace ml\.\n  Give it a Role and .*verbs \["create"\]',
    ),
    (
        status(403, 'x "a" is forbidden: exceeded quota: few, requested: pods=1, used: pods=4, limited: pods=4'),
        ForbiddenError,
        r"Quota few of namespace ml is used up: requested: pods=1, used: pods=4, limited: pods=4\.",
    ),
    (
        status(403, 'x "a" is forbidden: unable to create new content in namespace ml because it is being terminated'),
        NotInstalledError,
        "Namespace ml is being deleted",
    ),
    (status(403, 'pods "a" is forbidden: violates PodSecurity "restricted"'), ForbiddenError, "violates PodSecurity"),
    (
        status(400, 'admission webhook "v.ray.io" denied the request: name too long'),
        ManifestError,
        'webhook "v.ray.io" does not let us .*: .*name too long',
    ),
    (status(403, 'admission webhook "p.io" denied the request: no'), ManifestError, 'webhook "p.io"'),
    (status(404, 'namespaces "ml" not found', kind="namespaces", name="ml"), NotInstalledError, "no namespace ml"),
    (Answer(404, "404 page not found\n"), NotInstalledError, r"no rayjobs\.ray\.io of version v1.*Install the KubeRay"),
    (status(404, "the server could not find the requested resource"), NotInstalledError, "Install the KubeRay"),
    (
        status(422, "x", "Invalid", causes=[{"field": "spec.a", "message": "Required value"}] * 10),
        ManifestError,
        r"refuses RayJob a: spec\.a: Required value; .*and 2 more",
    ),
    (
        status(400, 'strict decoding error: unknown field "spec.x", unknown field "spec.y"', "BadRequest"),
        ManifestError,
        r"spec\.x: no such field; spec\.y: no such field",
    ),
    (status(413, "Request entity too large"), ManifestError, "too large"),
    (status(500, "etcdserver: request is too large"), ManifestError, "too large"),
    (Answer(413, "<html>"), ManifestError, "too large"),
    (status(500, 'failed calling webhook "w.io": timeout'), BackendUnreachable, 'service behind webhook "w.io"'),
    (status(503, "shutting down"), BackendUnreachable, "HTTP 503: shutting down"),
    (status(429, "too many requests"), BackendUnreachable, "HTTP 429"),
    (Answer(302, ""), BackendUnreachable, "HTTP 302: no text"),
    (Answer(502, "<html>Bad Gateway</html>"), BackendUnreachable, "Bad Gateway"),
]


@pytest.mark.parametrize(("answer", "error", "words"), CASES, ids=lambda value: str(value)[:40])
def test_each_refusal_says_what_it_is(answer: Answer, error: type[RayTpuError], words: str) -> None:
    found = refusal(asked(), answer)
    assert type(found) is error
    assert re.search(words, str(found), re.DOTALL), str(found)
    assert found.cause
    assert error in {Expired} or found.lever


def test_levers_fit_the_kind() -> None:
    missing = Answer(404, "404 page not found")
    assert "Kueue" in refusal(asked(resource=WORKLOADS), missing).lever
    assert "API server" in refusal(asked(resource=PODS), missing).lever
    denied = status(403, 'nodes is forbidden: User "u" cannot list resource "nodes"')
    found = refusal(asked("list", NODES, ""), denied)
    assert "in the whole cluster" in found.cause
    assert "ClusterRole and ClusterRoleBinding" in found.lever


@pytest.mark.parametrize(
    ("question", "answer", "again"),
    [
        (asked(), status(429, ""), True),
        (asked(), status(500, "boom"), True),
        (asked(), status(504, ""), True),
        (asked(), Answer(502, "<html>"), True),
        (asked(), status(408, ""), True),
        (asked(), status(500, "etcdserver: request is too large"), False),
        (asked(), status(413, ""), False),
        (asked(), status(401, ""), False),
        (asked(), status(403, ""), False),
        (asked(), status(422, ""), False),
        (asked(), status(409, "quota", "Conflict"), True),
        (asked(), status(409, "", "AlreadyExists"), False),
        (asked("patch"), status(409, "", "Conflict"), True),
        (asked("patch", guarded=True), status(409, "", "Conflict"), False),
        (asked("delete"), status(409, UID, "Conflict"), False),
        (asked("delete"), status(409, "", "Conflict"), True),
    ],
)
def test_only_what_may_pass_is_asked_again(question: Asked, answer: Answer, again: bool) -> None:
    assert passes(question, answer) is again


def test_absence_is_of_the_very_name() -> None:
    gone = status(404, 'rayjobs.ray.io "a" not found', "NotFound", name="a", kind="rayjobs")
    assert missing_name(asked("get"), gone)
    assert not missing_name(asked("get", name="b"), gone)
    assert not missing_name(asked("get", name="ml"), status(404, "", name="ml", kind="namespaces"))
    assert not missing_name(asked("get"), Answer(404, "404 page not found"))
    assert other_uid(status(409, UID, "Conflict"))
    assert not other_uid(status(409, "", "Conflict"))


def test_an_object_that_is_there_is_not_read_to_find_it_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", pytest.fail)
    assert not missing_name(asked("get"), Answer(200, "{}"))


def test_the_longer_of_two_pauses_is_kept() -> None:
    assert Answer(429, "", 3.0).pause == 3.0
    assert status(504, "", retryAfterSeconds=7).pause == 7.0
    assert status(504, "").pause == 0.0


@given(
    code=st.integers(300, 599), text=st.text(max_size=60) | st.sampled_from(["{}", "[]", "null", '{"kind":"Status"}'])
)
def test_any_answer_is_some_error(code: int, text: str) -> None:
    found = refusal(asked(), Answer(code, text))
    assert isinstance(found, RayTpuError)
    assert found.cause


def test_names_are_quoted_in_paths() -> None:
    assert RAYJOBS.path("ml", "a/../b") == "/apis/ray.io/v1/namespaces/ml/rayjobs/a%2F..%2Fb"
    assert (PODS.path("ml"), NODES.path("ml", "n")) == ("/api/v1/namespaces/ml/pods", "/api/v1/nodes/n")
