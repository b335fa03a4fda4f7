"""The training examples by a real scheduler: retrained by an asset, a model whose host is killed, and a sweep.

All of it shares one Airflow. The first test has each model begin with the one before, in runs that have no date.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.demo import processes
from tests import airflow_faults as faults
from tests.real_airflow import RealAirflow, Run, real_airflow
from tests.simulated_cluster import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.cluster, pytest.mark.timeout(600)]

DAGS = Path(__file__).parents[2] / "dags"
FILES = ("06_language_model.py", "07_sweep.py", "08_retrain_on_asset.py")
TINY = {"width": 32, "layers": 1}

MAPPED = """
from airflow.sdk import DAG, task

from airflow_raytpu import CheckpointPolicy
from airflow_raytpu.operators import RayTpuClusterOperator

with DAG("mapped", schedule=None):
    cluster = RayTpuClusterOperator(task_id="cluster", name="digits", slice="v6e:2x2")
    one = {{"cluster": cluster, "max_active_tis_per_dag": 1}}

    @task.jax_train(checkpoint=CheckpointPolicy(every_steps=1), **one)
    def fit(config):
        import numpy as np

        from airflow_raytpu.runtime import checkpoints

        state, step = checkpoints.restore_or_init(lambda: {{"scale": np.float32(config["scale"])}})
        checkpoints.step(step + 1, state, {{"scale": float(state["scale"])}})

    @task.jax_batch(output="{folder}/out/{{{{ ti.map_index }}}}", batch_size=4, **one)
    def apply(model, batch):
        return {{"y": batch["x"] * model["scale"]}}

    fitted = fit.expand(config=[{{"scale": 2.0}}, {{"scale": 3.0}}])
    apply.partial(batch="{folder}/rows").expand(model=fitted.map(lambda result: result["checkpoint"]))
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Parquet; what the mapped tasks make of it comes beside it."""
    folder = tmp_path_factory.mktemp("mapped") / "rows"
    folder.mkdir()
    pq.write_table(pa.table({"x": pa.array(range(10), pa.float32())}), folder / "rows.parquet")
    return folder


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, rows: Path) -> Iterator[RealAirflow]:
    dags = tmp_path_factory.mktemp("examples")
    (dags / "mapped.py").write_text(MAPPED.format(folder=rows.parent))
    for name in FILES:
        shutil.copy(DAGS / name, dags)
    for name in ("digits", "language_model"):
        shutil.copytree(DAGS / name, dags / name)
    with real_airflow(tmp_path_factory.mktemp("airflow") / ".demo", dags, {}) as found:
        yield found
        # The one that the runs share would go by itself, after some minutes.
        for shared in cluster.living(found.home.simulated):
            cluster.remove(shared)
    assert processes.marked(found.home.root) == []


def turn_on(airflow: RealAirflow, *dag_ids: str) -> None:
    for dag_id in dag_ids:
        wait_for(lambda dag_id=dag_id: airflow.api.has_dag(dag_id), within_s=60, every_s=0.5)
        airflow.api._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})


def ended_well(airflow: RealAirflow, run: Run, within_s: float) -> Run:
    assert run.end(within_s) == "success", {
        task: run.last_words(task) for task, state in run.states().items() if state == "failed"
    }
    return run


def newest(airflow: RealAirflow, dag_id: str, number: int) -> Run:
    """Run *number* of a DAG that an asset begins, once it has ended well."""
    wait_for(lambda: len(faults.runs(airflow, dag_id)) == number, within_s=60, every_s=0.5)
    return ended_well(airflow, faults.runs(airflow, dag_id)[-1], within_s=150)


def of_each(run: Run, task_id: str, states: dict[int, str]) -> dict[int, Any]:
    """What each task that was mapped returned, of those that succeeded; *states* is what became of all of them."""
    rows = [row for row in run.api.task_instances(run.dag_id, run.run_id) if row["task_id"] == task_id]
    assert {row["map_index"]: row["state"] for row in rows} == states
    path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}/xcomEntries/return_value"
    done = [number for number, state in states.items() if state == "success"]
    return {number: run.api._call("GET", f"{path}?map_index={number}")["value"] for number in done}


def retrained(airflow: RealAirflow) -> dict[str, Any]:
    """What the training returned that new data has begun."""
    turn_on(airflow, "digits_retrain")
    before = len(faults.runs(airflow, "digits_retrain"))
    ended_well(airflow, faults.trigger(airflow, "digits_data"), within_s=60)
    return newest(airflow, "digits_retrain", before + 1).result("train")


def test_new_data_trains_on_from_the_run_before(airflow):
    first, second = retrained(airflow), retrained(airflow)

    assert first["warm_start"] is None
    assert second["warm_start"] == first["checkpoint"] != second["checkpoint"]
    assert [(each["step"], each["resumed_from"]) for each in (first, second)] == [(100, 0)] * 2
    # It began with what the first one had learnt, and in as many steps comes further.
    assert second["metrics"]["loss"] < first["metrics"]["loss"]
    # Both on the one cluster that they share by its name.
    assert len(cluster.living(airflow.home.simulated)) == 1


@pytest.mark.long
def test_a_new_model_is_scored_and_of_several_the_newest(airflow):
    retrained(airflow)
    # Its first run is about all the models since it was first seen, not only since it was turned on.
    turn_on(airflow, "digits_score")
    made = retrained(airflow)
    scored = newest(airflow, "digits_score", 1)

    verdict = scored.result("evaluate")
    assert (verdict["checkpoint"], verdict["loss"]) == (made["checkpoint"], made["metrics"]["loss"])
    assert verdict["accuracy"] >= 0.9
    rows = scored.result("score")
    assert (rows["rows_in"], rows["rows_out"]) == (357, 357)


@pytest.mark.long
def test_the_language_model_learns_and_goes_on_when_a_host_is_killed(airflow):
    asked = {"width": 64, "layers": 1, "length": 32, "learning_rate": 0.01, "pretrain_steps": 30, "finetune_steps": 30}
    run = faults.trigger(airflow, "language_model", {**asked, "kill_at_step": 25})
    ended_well(airflow, run, within_s=400)

    before, after, verdict = (run.result(name) for name in ("pretrain", "finetune", "verdict"))
    assert (before["step"], before["evictions"], before["failures"]) == (30, 0, 0)
    assert (after["step"], after["evictions"], after["failures"]) == (30, 1, 0)
    assert after["warm_start"] == before["checkpoint"]
    # The checkpoint of step 10 is whole when that of step 20 begins, and at step 25 a host is killed.
    assert (verdict["evictions"], verdict["resumed_at"]) in {(1, 10), (1, 20)}
    assert before["metrics"]["held_out"] < 0.75 * before["metrics"]["held_out_at_start"]
    assert verdict["held_out"][1] < 0.95 * verdict["held_out"][0]
    assert (after["processes"], after["devices"]) == (2, 8)
    # Seven arrays of weights are large, and so are those that Adam remembers of them; each chip keeps a part.
    written = json.loads(Path(after["checkpoint"].removeprefix("file://"), "_sharding").read_text())
    cut = [each for each in map(json.loads, written.values()) if each["partition_spec"]]
    assert len(cut) == 7 * 3
    assert {tuple(side for side in each["partition_spec"] if side) for each in cut} == {("fsdp",)}


@pytest.mark.long
def test_a_sweep_chooses_the_best_of_those_that_came_to_their_end(airflow):
    # With the last rate the weights outgrow every number.
    rates = [0.001, 0.02, 1e6]
    run = faults.trigger(airflow, "sweep", {**TINY, "steps": 20, "learning_rates": rates})
    ended_well(airflow, run, within_s=400)

    trained = of_each(run, "train", {0: "success", 1: "success", 2: "failed"})
    losses = {number: each["metrics"]["held_out"] for number, each in trained.items()}
    best = min(losses, key=lambda number: losses[number])
    chosen = run.result("choose")
    assert chosen["of"] == {str(rates[number]): loss for number, loss in losses.items()}
    assert (chosen["learning_rate"], chosen["held_out"]) == (rates[best], losses[best])
    assert chosen["checkpoint"] == trained[best]["best_checkpoint"]
    assert Path(chosen["checkpoint"].removeprefix("file://"), "raytpu-commit.json").is_file()
    # Each on one host's part of the slice, and with checkpoints of its own.
    assert {(each["processes"], each["devices"]) for each in trained.values()} == {(1, 4)}
    assert len({each["checkpoint"] for each in trained.values()}) == len(trained)


@pytest.mark.long
def test_decorated_loops_are_mapped_and_what_they_saved_is_mapped_again(airflow, rows):
    run = ended_well(airflow, faults.trigger(airflow, "mapped"), within_s=400)

    fitted = of_each(run, "fit", {0: "success", 1: "success"})
    applied = of_each(run, "apply", {0: "success", 1: "success"})
    assert [each["metrics"] for each in fitted.values()] == [{"scale": 2.0}, {"scale": 3.0}]
    for number, scale in enumerate((2.0, 3.0)):
        assert applied[number]["output"] == (rows.parent / "out" / str(number)).as_uri()
        table = pq.read_table(rows.parent / "out" / str(number), columns=["x", "y"])
        assert table.to_pydict() == {"x": list(range(10)), "y": [scale * each for each in range(10)]}
