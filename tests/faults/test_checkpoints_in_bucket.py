"""A real gang whose storage and input are a bucket that misbehaves: every client in every process meets the trouble."""

from __future__ import annotations

import contextlib
import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_raytpu.backends.simulated.state import Arrivals
from airflow_raytpu.model.observation import Progress
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.storage import buckets
from tests.doubles import bucket_server, emulator
from tests.doubles.bucket_server import ALWAYS, Bucket
from tests.faults.checkpoint_gangs import SMALL, STEPS, Gangs, fault, tries
from tests.simulated_cluster import running_cluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(540)]


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[Gangs, Bucket]]:
    with (
        pytest.MonkeyPatch.context() as patch,
        emulator.emulating("runs") as store,
        bucket_server.serving(store) as (address, bucket),
    ):
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


def rows_in(bucket: Bucket, ids: np.ndarray) -> None:
    """A data set of *ids* at ``gs://runs/in``, in small row groups where there are few."""
    data = io.BytesIO()
    pq.write_table(pa.table({"id": ids}), data, row_group_size=9 if len(ids) < 10_000 else None)
    bucket.held["in/a.parquet"] = data.getvalue()


def progress(request: RayRequest, bucket: Bucket) -> Progress:
    told = bucket.held.get(request.outbox("progress").removeprefix("gs://runs/"))
    return Progress.from_dict(json.loads(told)) if told else Progress(request="", phase="", at=0.0)


@contextlib.contextmanager
def once_at(began: Callable[[], object], then: Callable[[], object]) -> Iterator[None]:
    """Do *then* once *began* is true, beside what is done inside."""
    beside = threading.Thread(target=lambda: wait_for(began, within_s=200) and then())
    beside.start()
    yield
    beside.join()


@pytest.mark.long
def test_inputs_that_do_not_come_any_more_cost_an_eviction(served):
    gangs, bucket = served
    bucket.clear()
    rows_in(bucket, np.arange(STEPS * 8))
    request = in_bucket(
        gangs.request(
            "outage", datasets={"train": "gs://runs/in"}, config={"batch": 8, "nap": 0.5, "patience": 1}, evictions=2
        )
    )

    def outage() -> None:
        bucket.trouble("status", "get in/", times=ALWAYS, status=503)
        wait_for(lambda: progress(request, bucket).spent.get("evictions"), within_s=100)
        bucket.troubles.clear()

    with once_at(lambda: 10 in committed(request, bucket), outage):
        value = gangs.result(request)

    assert (value["step"], value["evictions"], value["failures"]) == (STEPS, 1, 0)
    assert value["resumed_from"] == 0
    assert "in/a.parquet could not be read: " in value["causes"][0]
    second = tries(request)[1]
    assert second.began >= 10


@pytest.mark.long
def test_what_ray_data_may_not_read_is_no_error_of_the_authors(served):
    gangs, bucket = served
    bucket.clear()
    # More, for each of two hosts, than is read where the data set is made.
    rows_in(bucket, np.random.default_rng(0).integers(0, 1 << 62, 20_000_000))
    denied = "raytpu@p.iam.gserviceaccount.com does not have storage.objects.get access"
    request = in_bucket(gangs.request("refused", loop="whole_shard", datasets={"train": "gs://runs/in"}))

    def refuse() -> None:
        bucket.trouble("status", "get in/", times=ALWAYS, status=403, says=denied)

    with once_at(lambda: progress(request, bucket).slice_at, refuse):
        outcome = gangs.outcome(request)

    assert (outcome.code, outcome.cause) == ("RT103", f"gs://runs/in/a.parquet could not be read: {denied}")
    assert outcome.traceback == ""


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
    assert progress(request, bucket).done


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
