from __future__ import annotations

import time
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest
from tests.doubles import bucket_server


@pytest.fixture
def make_request(tmp_path):
    """A request whose storage is the test's folder."""

    def make(attempt=1, **changes):
        values = {
            "identity": Identity(deployment="d", dag_id="dag", task_id="task", run_id="run", attempt=attempt),
            "kind": Kind.TRAIN,
            "slice": "v6e:4x4",
            "storage": (tmp_path / "storage").as_uri(),
            "limits": Deadlines().since(1000.0),
            "cluster": "c",
            "code": "file:///code.zip",
        }
        return RayRequest(**values | changes)

    return make


@pytest.fixture
def write_rows(tmp_path):
    """Parquet files of the given numbers of rows, numbered through in ``id``; the folder's URI."""

    def write(*rows, folder="input", group=None):
        place, offset = tmp_path / folder, 0
        place.mkdir(parents=True, exist_ok=True)
        for number, count in enumerate(rows):
            ids = range(offset, offset + count)
            table = pa.table(
                {
                    "id": [f"row-{row}" for row in ids],
                    "value": pa.array([float(row) for row in ids], pa.float32()),
                    "pair": pa.array([[row, -row] for row in ids], pa.list_(pa.int64())),
                }
            )
            pq.write_table(table, place / f"f{number:02d}.parquet", row_group_size=group or max(count, 1))
            offset += count
        return place.as_uri()

    return write


@pytest.fixture(scope="session")
def storage_server():
    """One for all: TensorStore keeps the address that it was given first."""
    with bucket_server.serving("runs") as found:
        yield found


@pytest.fixture
def bucket(storage_server, monkeypatch):
    """``gs://runs``, empty, for the real clients, which make no pause between two tries."""
    from airflow_raytpu.runtime import buckets, files

    address, found = storage_server
    for name, value in bucket_server.environment(address).items():
        monkeypatch.setenv(name, value)
    pauses = SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic)
    monkeypatch.setattr("google.api_core.retry.retry_unary.time", pauses)

    async def pause(_):
        pass

    monkeypatch.setattr("gcsfs.retry.asyncio", SimpleNamespace(sleep=pause))
    buckets._client.cache_clear()
    files._arrow_gcs.cache_clear()
    found.clear()
    yield found
    found.clear()
    buckets._client.cache_clear()
    files._arrow_gcs.cache_clear()
