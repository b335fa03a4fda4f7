"""A real gang whose storage is a bucket that misbehaves: every client in every process meets the trouble."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_raytpu.backends.simulated.state import Arrivals
from airflow_raytpu.model.observation import Progress
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.storage import buckets
from tests.doubles import bucket_server
from tests.doubles.bucket_server import ALWAYS, Bucket
from tests.faults.checkpoint_gangs import SMALL, STEPS, Gangs, fault, tries
from tests.simulated_cluster import running_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(540)]


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[Gangs, Bucket]]:
    with pytest.MonkeyPatch.context() as patch, bucket_server.serving("runs") as (address, bucket):
        for name, value in bucket_server.environment(address).items():
            patch.setenv(name, value)
        buckets._client.cache_clear()
        with running_cluster(SMALL, arrivals=Arrivals(heal_s=1.0)) as cluster:
            yield Gangs(cluster, tmp_path_factory.mktemp("bucket")), bucket
        buckets._client.cache_clear()


def in_bucket(request: RayRequest) -> RayRequest:
    return replace(request, storage=f"gs://runs/{request.identity.storage_path()}")


def committed(request: RayRequest, bucket: Bucket) -> dict[int, Any]:
    pattern = re.compile(re.escape(f"{request.identity.storage_path()}/checkpoints/") + r"(\d+)/raytpu-commit\.json")
    records = {pattern.fullmatch(name): data for name, data in bucket.held.items()}
    return {int(match[1]): json.loads(data) for match, data in records.items() if match}


@pytest.mark.long
def test_a_gang_outlives_a_bucket_in_trouble_and_a_killed_worker(served):
    gangs, bucket = served
    bucket.clear()
    # Each lasts for two tries of whoever meets it.
    for what, of in (
        ("status", "put .*/checkpoints/5/.*/d/"),
        ("reset", "(begin|put) .*/checkpoints/5/_METADATA"),
        ("lost", "put .*/checkpoints/5/raytpu-commit.json"),
        ("half", "put .*/checkpoints/10/.*manifest"),
        ("torn", "get .*/checkpoints/.*/_METADATA"),
        ("reset", "list .*/checkpoints/$"),
        ("status", "put .*progress.json"),
        ("lost", "put .*result.json"),
    ):
        bucket.trouble(what, of, times=2, status=429)
    bucket.trouble("status", "(put|begin|part) .*/checkpoints/20/", times=ALWAYS, status=403)
    request = in_bucket(gangs.request("trouble", config={"faults": [fault("worker", 1, 15, 0.2)]}, evictions=1))

    value = gangs.result(request)

    log = gangs.cluster.log(request)
    first, second = tries(request)
    assert (value["step"], value["resumed_from"], value["evictions"]) == (STEPS, 0, 1)
    assert second.began in (10, 15)
    assert {step: second.losses[step] for step in first.losses if step > second.began} == pytest.approx(
        {step: loss for step, loss in first.losses.items() if step > second.began}, rel=1e-6
    )
    assert re.search(r"step 20 could not be saved: .*(?s:.*?) \(1 of 3 in a row\)", log)
    assert sorted(committed(request, bucket)) == [30, STEPS]
    # Nothing of the broken saves, 20 among them, and no more than Ray's and our own files beside the two.
    checkpoints = f"{request.identity.storage_path()}/checkpoints/"
    steps = {name.removeprefix(checkpoints).split("/")[0] for name in bucket.held if name.startswith(checkpoints)}
    assert {step for step in steps if step.isdigit()} == {"30", str(STEPS)}
    assert {met.split()[0] for met in bucket.met} == {"status", "reset", "lost", "half", "torn"}
    assert Progress.from_dict(json.loads(bucket.held[request.outbox("progress").removeprefix("gs://runs/")])).done


def test_a_bucket_that_may_not_be_written_ends_the_task_before_it_has_a_slice(served):
    gangs, bucket = served
    bucket.clear()
    denied = "raytpu@p.iam.gserviceaccount.com does not have storage.objects.create access"
    bucket.trouble("status", "(put|begin) .*/checkpoints/", times=ALWAYS, status=403, says=denied)
    request = in_bucket(gangs.request("denied"))

    outcome = gangs.outcome(request)

    assert outcome.code == "RT103"
    assert denied in outcome.cause
    assert outcome.lever == "Grant the service account of the Ray pods Storage Object User on the bucket."
    assert "waiting for a slice" not in gangs.cluster.log(request)
    assert len(bucket.met) == 1
