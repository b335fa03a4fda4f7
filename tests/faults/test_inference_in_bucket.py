"""Batch inference on a slice of two hosts, with its input, model, output and storage in a bucket that misbehaves."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_raytpu.backends.simulated.state import Arrivals
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.storage import buckets
from tests.doubles import bucket_server, emulator
from tests.doubles.bucket_server import ALWAYS, Bucket
from tests.simulated_cluster import SimulatedCluster, job_request, running_cluster, stage_files, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROWS = (101, 90, 0, 166)
SOURCE = """
def predict(model, batch):
    return {"scaled": batch["value"] * model["scale"]}
"""


class Scoring:
    """Runs on one cluster, with one bucket."""

    def __init__(self, cluster: SimulatedCluster, bucket: Bucket, folder: Path) -> None:
        self.cluster, self.bucket, self._folder = cluster, bucket, folder
        self._code = stage_files({"bucket_wares.py": SOURCE}, folder / "code")
        self._model = checkpoint(folder / "model")

    def begin(self, rows: tuple[int, ...]) -> None:
        """A bucket with the model and with one input file for each of *rows*, their values counted through."""
        self.bucket.clear()
        self.bucket.held |= self._model
        first = 0
        for number, count in enumerate(rows):
            self.bucket.held[f"in put/f{number}.parquet"] = parquet(first, count)
            first += count

    def outcome(self, task_id: str, **arguments: Any) -> tuple[RayRequest, Outcome]:
        request = job_request(
            task_id,
            self._folder,
            self._code,
            on=self.cluster.request,
            slice="v6e:2x4@4t",
            kind=Kind.INFERENCE,
            arguments={
                "predict": "bucket_wares:predict",
                "load": None,
                "model": "gs://runs/model/7",
                "input": "gs://runs/in%20put",
                "output": "gs://runs/out",
                "batch_size": 64,
                "ragged": "pad",
                "columns": ["value"],
                **arguments,
            },
        )
        request = replace(request, storage=f"gs://runs/{request.identity.storage_path()}")
        seen = self.cluster.run(request, 240)
        assert seen.outcome is not None, self.cluster.log(request)
        return request, seen.outcome

    def parts(self) -> list[str]:
        return [name for name in list(self.bucket.held) if name.startswith("out/part-")]

    def rows(self) -> list[tuple[int, float]]:
        """What came out, part by part in the order of the input's files."""
        found = {}
        for name in self.parts():
            table = pq.read_table(io.BytesIO(self.bucket.held[name]))
            found[json.loads(table.schema.metadata[b"airflow_raytpu"])["source"]] = table
        whole = pa.concat_tables([found[name].replace_schema_metadata() for name in sorted(found)])
        return list(zip(whole["id"].to_pylist(), whole["scaled"].to_pylist(), strict=True))


def parquet(first: int, rows: int) -> bytes:
    data = io.BytesIO()
    ids = np.arange(first, first + rows)
    pq.write_table(pa.table({"id": ids, "value": ids.astype(np.float32)}), data, row_group_size=max(rows // 3, 1))
    return data.getvalue()


def checkpoint(folder: Path) -> dict[str, bytes]:
    """A model as Orbax writes it, as objects."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "7", {"scale": np.float32(3)})
    return {
        f"model/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scoring]:
    with (
        pytest.MonkeyPatch.context() as patch,
        emulator.emulating("runs") as store,
        bucket_server.serving(store) as (address, bucket),
    ):
        for name, value in bucket_server.environment(address).items():
            patch.setenv(name, value)
        buckets._client.cache_clear()
        with running_cluster("v6e:2x4@4t", arrivals=Arrivals(heal_s=1.0)) as cluster:
            yield Scoring(cluster, bucket, tmp_path_factory.mktemp("scoring"))
        buckets._client.cache_clear()


def test_every_row_comes_out_once_and_in_order_through_a_bucket_in_trouble(scoring):
    scoring.begin(ROWS)
    # Each lasts for two tries of whoever meets it.
    for what, of in (
        ("reset", "list in put/"),
        ("status", "stat in put/f0"),
        ("torn", "get in put/f1"),
        ("reset", "get in put/f3"),
        ("status", "get model/.*_METADATA"),
        ("reset", "get model/.*/d/"),
        ("torn", "stat out/part-"),
        ("status", "put out/part-"),
        ("lost", "put out/part-"),
        ("reset", "get out/part-"),
        ("lost", "put .*result.json"),
    ):
        scoring.bucket.trouble(what, of, times=2, status=429)

    request, outcome = scoring.outcome("trouble")

    assert outcome.succeeded, scoring.cluster.log(request)
    value = outcome.value
    assert (value["rows_in"], value["rows_out"], value["parts"], value["evictions"]) == (sum(ROWS), sum(ROWS), 4, 0)
    assert scoring.rows() == [(row, 3.0 * row) for row in range(sum(ROWS))]
    assert [trouble for trouble in scoring.bucket.troubles if trouble.times] == []


def test_an_output_that_may_not_be_written_ends_the_task_before_it_has_a_slice(scoring):
    scoring.begin(ROWS)
    denied = "raytpu@p.iam.gserviceaccount.com does not have storage.objects.create access"
    scoring.bucket.trouble("status", "(put|begin) out/", times=ALWAYS, status=403, says=denied)

    request, outcome = scoring.outcome("denied")

    assert outcome.code == "RT103"
    assert denied in outcome.cause
    assert outcome.lever == "Grant the service account of the Ray pods Storage Object User on the bucket."
    assert "waiting for a slice" not in scoring.cluster.log(request)
    assert len(scoring.bucket.met) == 1


@pytest.mark.long
def test_a_killed_host_leaves_the_parts_that_are_there(scoring):
    rows = (8000,) * 4
    scoring.begin(rows)
    # A part that is there before the driver has heard of it may be written again; the second one it will not have.
    first: list[str] = []

    def kill_the_second_host_after_two_parts() -> None:
        first.extend(wait_for(lambda: len(found := scoring.parts()) >= 2 and found, within_s=120)[:1])
        scoring.cluster.kill_host(0, 1)

    killer = threading.Thread(target=kill_the_second_host_after_two_parts)
    killer.start()
    request, outcome = scoring.outcome("killed", batch_size=8)
    killer.join()

    assert outcome.succeeded, scoring.cluster.log(request)
    value = outcome.value
    assert (value["rows_out"], value["parts"], value["parts_skipped"], value["evictions"]) == (sum(rows), 4, 0, 1)
    assert scoring.rows() == [(row, 3.0 * row) for row in range(sum(rows))]
    assert scoring.bucket.calls.count(f"put {first[0]}") == 1
