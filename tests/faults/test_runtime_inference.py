"""Batch inference on a real slice: rows out are rows in, a restart does only what is left, errors are the author's."""

import json
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_raytpu.backends.simulated.state import Arrivals
from airflow_raytpu.model.observation import JobState
from airflow_raytpu.model.request import Kind
from airflow_raytpu.storage import staging
from airflow_raytpu.storage.code import find_code
from tests.simulated_cluster import job_request, running_cluster, wait_for

pytestmark = pytest.mark.cluster

ROWS = (101, 90, 0, 166)

SOURCE = """
def load(uri):
    import numpy as np
    return {"scale": np.float32(2), "name": "doubler"}


def predict(model, batch):
    import jax.numpy as jnp
    assert model["name"] == "doubler"
    return {"double": batch["value"] * model["scale"], "sum": batch["pair"].sum(axis=-1),
            "both": jnp.stack([batch["value"]] * 2, -1)}


def raises(model, batch):
    return {"double": batch["pair"] @ batch["pair"]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("infer")
    (folder / "code").mkdir()
    (folder / "code" / "scoring_wares.py").write_text(SOURCE)
    (folder / "input").mkdir()
    offset = 0
    for number, rows in enumerate(ROWS):
        ids = np.arange(offset, offset + rows)
        values = np.where(ids % 50 == 7, 0, ids).astype(np.float32)  # rows that are all zero are rows
        pairs = pa.array([[value, -value] for value in values.tolist()], pa.list_(pa.float32()))
        table = pa.table(
            {"id": [f"row {row}" for row in ids], "value": values, "pair": pairs, "when": ids.astype("M8[ms]")}
        )
        pq.write_table(table, folder / "input" / f"f{number}.parquet")
        offset += rows
    return folder


@pytest.fixture(scope="module")
def code(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "code"))
        return staging.stage([find_code("scoring_wares:predict", "predict")], (folder / "storage").as_uri())


@pytest.fixture(scope="module")
def infer(simulated_cluster, folder, code):
    def run(task_id, attempt=1, predict="predict", **arguments):
        request = job_request(
            f"infer-{task_id}",
            folder / task_id,
            code,
            on=simulated_cluster.request,
            attempt=attempt,
            slice="v6e:4x4",
            kind=Kind.INFERENCE,
            arguments={
                "predict": f"scoring_wares:{predict}",
                "load": "scoring_wares:load",
                "model": None,
                "input": (folder / "input").as_uri(),
                "output": (folder / f"{task_id}-out").as_uri(),
                "batch_size": 64,
                "ragged": "pad",
                "columns": ["value", "pair"],
                **arguments,
            },
        )
        seen = simulated_cluster.run(request)
        assert seen.outcome is not None, simulated_cluster.log(request)
        return request, seen

    return run


def read(folder, task_id):
    """All rows of an output, part by part in the order of the input's files."""
    parts = {
        json.loads(pq.read_schema(path).metadata[b"airflow_raytpu"])["source"]: path
        for path in (folder / f"{task_id}-out").iterdir()
    }
    return pa.concat_tables([pq.read_table(parts[name]).replace_schema_metadata() for name in sorted(parts)])


def check(table, rows):
    assert table["id"].to_pylist() == [f"row {row}" for row in range(rows)]
    values = table["value"].to_numpy()
    assert table["double"].to_pylist() == (values * 2).tolist()
    assert table["sum"].to_pylist() == [0.0] * rows
    assert table["both"].to_pylist() == [[value, value] for value in values.tolist()]
    assert table.schema.field("when").type == pa.timestamp("ms")
    zeros = [row for row in range(rows) if row % 50 == 7]
    assert [row for row in range(rows) if values[row] == 0 and row > 0] == zeros


def test_every_row_comes_out_once_in_its_place_and_a_restart_does_only_what_is_left(infer, folder):
    request, seen = infer("pad")

    assert seen.outcome.succeeded, seen.outcome
    value = seen.outcome.value
    assert (value["rows_in"], value["rows_out"], value["rows_dropped"]) == (357, 357, 0)
    assert (value["parts"], value["parts_skipped"]) == (4, 0)
    assert (seen.progress.phase, seen.progress.done, seen.progress.total) == ("inferring", 357, 357)
    check(read(folder, "pad"), 357)

    # As if the first attempt had failed after three of its parts.
    result = Path(request.outbox("result").removeprefix("file://"))
    result.write_text(json.dumps({**json.loads(result.read_text()), "code": "RT204"}))
    parts = {path: path.stat().st_mtime_ns for path in (folder / "pad-out").iterdir()}
    lost = max(parts, key=lambda path: path.stat().st_size)
    lost.write_bytes(lost.read_bytes()[:100])

    _, again = infer("pad", attempt=2)

    assert again.outcome.value["parts_skipped"] == 3, again.outcome
    assert again.outcome.value["rows_out"] == 357
    check(read(folder, "pad"), 357)
    assert {path for path in parts if path.stat().st_mtime_ns != parts[path]} == {lost}


def test_drop_drops_the_tail_and_says_so(infer, folder):
    _, seen = infer("drop", ragged="drop")

    assert seen.outcome.succeeded, seen.outcome
    value = seen.outcome.value
    assert (value["rows_in"], value["rows_out"], value["rows_dropped"]) == (357, 320, 37)
    check(read(folder, "drop"), 320)


def test_raise_refuses_before_the_first_batch(infer, folder):
    _, seen = infer("raise", ragged="raise")

    assert seen.job is JobState.FAILED
    assert seen.outcome.code == "RT104"
    assert "357 rows make 5 batches of 64 and 37 rows more" in seen.outcome.cause
    assert not (folder / "raise-out").exists()


def test_a_prediction_that_fails_is_the_authors(infer, folder):
    _, seen = infer("raises", predict="raises")

    assert seen.outcome.code == "RT301"
    assert seen.outcome.cause.startswith("raises raised TypeError on host ")
    line = next(number for number, text in enumerate(SOURCE.splitlines(), 1) if "@" in text)
    assert seen.outcome.traceback.splitlines()[-1].startswith(f"scoring_wares.py:{line}: TypeError: ")
    assert list((folder / "raises-out").iterdir()) == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_lost_host_costs_an_eviction_and_only_what_was_not_written(code, tmp_path):
    (tmp_path / "input").mkdir()
    for number in range(4):
        values = np.arange(number * 8000, (number + 1) * 8000).astype(np.float32)
        pairs = pa.array([[value, -value] for value in values.tolist()], pa.list_(pa.float32()))
        pq.write_table(pa.table({"value": values, "pair": pairs}), tmp_path / "input" / f"f{number}.parquet")
    out = tmp_path / "out"
    with running_cluster("v6e:2x2", arrivals=Arrivals(heal_s=1.0)) as cluster:
        request = job_request(
            "infer-loses",
            tmp_path / "storage",
            code,
            on=cluster.request,
            slice="v6e:2x2",
            kind=Kind.INFERENCE,
            arguments={
                "predict": "scoring_wares:predict",
                "load": "scoring_wares:load",
                "model": None,
                "input": (tmp_path / "input").as_uri(),
                "output": out.as_uri(),
                "batch_size": 4,
                "ragged": "pad",
                "columns": None,
            },
        )
        first = []

        def kill_the_host_after_two_parts():
            # Of the second, the driver may not have heard yet: then it is written again.
            found = wait_for(lambda: len(found := list(out.glob("*.parquet"))) >= 2 and found, within_s=90)
            first.append(min(found, key=lambda path: path.stat().st_mtime_ns))
            first.append(first[0].stat().st_mtime_ns)
            cluster.kill_host(0, 0)

        killer = threading.Thread(target=kill_the_host_after_two_parts)
        killer.start()
        seen = cluster.run(request, 200)
        killer.join()

        assert seen.outcome is not None, cluster.log(request)
        assert seen.outcome.succeeded, seen.outcome
        value = seen.outcome.value
        assert (value["rows_out"], value["parts"], value["parts_skipped"], value["evictions"]) == (32_000, 4, 0, 1)
        assert [part.name for part in cluster.slices()] == ["tests-shared-1"]
    path, written_at = first
    assert path.stat().st_mtime_ns == written_at
    table = pa.concat_tables([pq.read_table(path).replace_schema_metadata() for path in out.iterdir()])
    assert sorted(table["double"].to_pylist()) == [2.0 * row for row in range(32_000)]
