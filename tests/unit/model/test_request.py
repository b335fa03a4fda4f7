"""A request is one value that survives JSON and names everything it owns."""

import json

import pytest

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.policies import CheckpointPolicy, RetryBudget, Rollout
from airflow_raytpu.model.request import ARGUMENTS_LIMIT, Kind, RayRequest

IDENTITY = Identity(deployment="d", dag_id="digits", task_id="train", run_id="r")


def request(**changes):
    values = {
        "identity": IDENTITY,
        "kind": Kind.TRAIN,
        "slice": "v6e:4x4",
        "storage": "file:///s/digits/train/r",
        "limits": Deadlines().since(1000.0),
    }
    return RayRequest(**values | changes)


@pytest.mark.parametrize("kind", list(Kind))
def test_it_survives_json(kind):
    asked = request(kind=kind, arguments={"learning_rate": 1e-5, "note": "1e-5"}, cluster="c", code="file:///c.zip")
    again = RayRequest.from_dict(json.loads(json.dumps(asked.to_dict())))
    assert again == asked
    assert again.arguments == {"learning_rate": 1e-5, "note": "1e-5"}


def test_a_request_from_a_newer_release_is_refused():
    with pytest.raises(RequestError, match="version 2"):
        RayRequest.from_dict(request().to_dict() | {"version": 2})


def test_arguments_too_large_for_a_kubernetes_object_are_refused_with_the_limit():
    with pytest.raises(RequestError, match=f"{ARGUMENTS_LIMIT:,} fit"):
        request(arguments={"blob": "x" * ARGUMENTS_LIMIT})


def test_a_shared_cluster_is_used_and_not_owned():
    assert request(cluster="shared").cluster_name == "shared"
    assert not request(cluster="shared").owns_cluster
    assert request().cluster_name == request().name
    assert request().owns_cluster


def test_files_of_two_attempts_lie_side_by_side():
    first, second = request(), request(identity=IDENTITY.with_attempt(2))
    assert first.outbox("result") != second.outbox("result")
    assert first.outbox("result").rpartition("/")[0] == second.outbox("result").rpartition("/")[0]


@pytest.mark.parametrize(
    "make",
    [lambda: RetryBudget(failures=-1), lambda: CheckpointPolicy(every_steps=0), lambda: CheckpointPolicy(keep=0)],
)
def test_a_policy_out_of_range_is_refused(make):
    with pytest.raises(RequestError):
        make()


def test_a_smoke_request_with_a_misspelt_key_is_refused():
    with pytest.raises(RequestError, match="statuss"):
        Rollout(smoke=[{"json": {}, "statuss": 200}])
