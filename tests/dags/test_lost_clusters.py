"""Clusters that die under their tasks, by a real scheduler with no retries: the work goes on on another one."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.state import Phase
from tests.real_airflow import RealAirflow, Run, real_airflow
from tests.simulated_cluster import head_of, wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.cluster, pytest.mark.timeout(420)]

STEPS = 60
DAGS = f"""
from airflow.sdk import DAG
from airflow_raytpu import CheckpointPolicy
from airflow_raytpu.operators import JaxTrainerOperator, RayTpuClusterOperator

def loop(config):
    import time
    import jax.numpy as jnp
    from airflow_raytpu.runtime import checkpoints
    state, step = checkpoints.restore_or_init(lambda: {{"sum": jnp.zeros(())}})
    while step < {STEPS}:
        step += 1
        state = {{"sum": state["sum"] + step}}
        checkpoints.step(step, state, {{"sum": float(state["sum"])}})
        time.sleep(0.2)

def train(**where):
    return JaxTrainerOperator(
        task_id="train",
        train_loop=loop,
        train_loop_config={{"steps": {STEPS}}},
        checkpoint=CheckpointPolicy(every_steps=5),
        retries=0,
        **where,
    )

with DAG("its_own", schedule=None):
    train(slice="v6e:2x2")

with DAG("the_runs", schedule=None):
    cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:2x2", retries=0)
    train(cluster=cluster)
    cluster.teardown()
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealAirflow]:
    dags = tmp_path_factory.mktemp("dags")
    (dags / "lost.py").write_text(DAGS)
    with real_airflow(tmp_path_factory.mktemp("airflow") / ".demo", dags, {}) as found:
        yield found


def saved_twice(airflow: RealAirflow, dag_id: str) -> bool:
    folder = airflow.home.storage / dag_id / "train"
    return len(list(folder.glob("*/checkpoints/*/raytpu-commit.json"))) >= 2


def ready(airflow: RealAirflow, dag_id: str) -> Cluster | None:
    there = [each for each in cluster.living(airflow.home.simulated) if each.record.phase is Phase.READY]
    return next((each for each in there if each.record.identity["dag_id"] == dag_id), None)


def kill_head(found: Cluster) -> None:
    assert head_of(found).signal(signal.SIGKILL)


def kill_supervisor(found: Cluster) -> None:
    assert found.record.supervisor is not None
    assert found.record.supervisor.signal(signal.SIGKILL)


def test_a_lost_cluster_costs_an_eviction_and_no_retry(airflow: RealAirflow) -> None:
    kills = {"its_own": kill_head, "the_runs": kill_supervisor}
    runs = {dag_id: airflow.run(dag_id) for dag_id in kills}
    for dag_id, kill in kills.items():
        wait_for(functools.partial(saved_twice, airflow, dag_id), within_s=150)
        found = ready(airflow, dag_id)
        assert found is not None
        kill(found)
    for run in runs.values():
        assert run.end(within_s=200) == "success", run.log(airflow.home, "train")
        check(airflow, run, run.result("train"))
    assert cluster.living(airflow.home.simulated) == []


def check(airflow: RealAirflow, run: Run, result: dict[str, Any]) -> None:
    (row,) = [each for each in airflow.api.task_instances(run.dag_id, run.run_id) if each["task_id"] == "train"]
    assert row["try_number"] == 1
    assert (result["step"], result["evictions"], result["failures"]) == (STEPS, 1, 0)
    assert result["metrics"]["sum"] == sum(range(1, STEPS + 1))
    assert result["resumed_from"] >= 10
    assert len(result["causes"]) == 1
    assert "1 of 20 evictions used; beginning again." in run.log(airflow.home, "train")
