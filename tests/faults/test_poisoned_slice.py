"""A slice that looks whole and kills whatever begins on it: after one loss the work is on another."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_raytpu.model.request import Kind
from tests.simulated_cluster import SimulatedCluster, job_request, running_cluster, stage_files

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SOURCE = """
import os
import signal


def whole(mark):
    # The slice on which it begins first is the one that kills.
    try:
        with open(mark, "x") as out:
            out.write(os.environ["TPU_NAME"])
    except FileExistsError:
        pass
    with open(mark) as poisoned:
        if os.environ["TPU_NAME"] == poisoned.read():
            os.kill(os.getpid(), signal.SIGKILL)
    return os.environ["TPU_NAME"]


def load(uri):
    whole(uri)


def predict(model, batch):
    return {"double": batch["value"] * 2}


def loop(config):
    import ray.train

    whole(config["mark"])
    ray.train.report({"step": 1, "loss": 0.5})
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[SimulatedCluster]:
    with running_cluster("v6e:2x2", also=["v6e:2x2"]) as found:
        yield found


def arguments(kind, folder):
    mark = folder / "mark"
    if kind is Kind.JOB:
        program = {"how": "function", "entry": "wares:whole", "args": [str(mark)], "kwargs": {}, "env": {}}
        return {**program, "per_host": True, "reserve": True, "failures": 0, "evictions": 1}
    if kind is Kind.TRAIN:
        return {
            "train_loop": "wares:loop",
            "train_loop_config": {"mark": str(mark)},
            "datasets": {},
            "checkpoint": {"every_steps": 5, "keep": 2},
            "failures": 0,
            "evictions": 1,
            "resume": "auto",
        }
    (folder / "input").mkdir()
    pq.write_table(pa.table({"value": [1.0, 2.0, 3.0]}), folder / "input" / "rows.parquet")
    return {
        "predict": "wares:predict",
        "load": "wares:load",
        "model": str(mark),
        "input": (folder / "input").as_uri(),
        "output": (folder / "out").as_uri(),
        "batch_size": 4,
        "ragged": "pad",
        "columns": None,
    }


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(Kind.JOB, marks=pytest.mark.long),
        pytest.param(Kind.INFERENCE, marks=pytest.mark.long),
        Kind.TRAIN,
    ],
    ids=lambda kind: kind.value,
)
def test_a_slice_that_kills_all_that_begins_on_it_is_left_for_another(pair, tmp_path, kind):
    request = job_request(
        f"poisoned-{kind.value}",
        tmp_path / "storage",
        stage_files({"wares.py": SOURCE}, tmp_path / "code"),
        on=pair.request,
        slice="v6e:2x2",
        kind=kind,
        arguments=arguments(kind, tmp_path),
    )

    seen = pair.run(request)

    assert seen.outcome is not None, pair.log(request)
    assert seen.outcome.succeeded, seen.outcome
    value = seen.outcome.value
    assert (value["evictions"], len(value["causes"])) == (1, 1)
    if kind is Kind.JOB:
        assert value["value"] == list({each.name for each in pair.slices()} - {(tmp_path / "mark").read_text()})
    if kind is Kind.INFERENCE:
        assert value["rows_out"] == 3
