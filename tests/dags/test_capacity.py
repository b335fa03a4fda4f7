"""Waiting for slices under a real scheduler: the example DAG, with slices that come when the test says so."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.state import Phase
from tests.real_airflow import RealAirflow, real_airflow
from tests.simulated_cluster import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.cluster, pytest.mark.timeout(180)]

EXAMPLE = Path(__file__).parents[2] / "dags" / "02_wait_for_capacity.py"
IN_VAIN = """
from datetime import timedelta
from airflow.sdk import DAG
from airflow_raytpu.sensors import TpuSliceSensor

with DAG("in_vain", schedule=None):
    TpuSliceSensor(task_id="never", slice="v6e:4x4", timeout=timedelta(seconds=4), poke_interval=1, retries=3)
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealAirflow]:
    dags = tmp_path_factory.mktemp("dags")
    shutil.copy(EXAMPLE, dags)
    (dags / "in_vain.py").write_text(IN_VAIN)
    root = tmp_path_factory.mktemp("airflow") / ".demo"
    # The short interval of the settings, for the sensor too; and slices only when they are told to come.
    with real_airflow(root, dags, {"RAYTPU_SIM_LATE_S": "never"}) as found:
        yield found


def ready_clusters(airflow: RealAirflow) -> list[Cluster]:
    return [each for each in cluster.living(airflow.home.simulated) if each.record.phase is Phase.READY]


def test_a_cluster_and_a_sensor_wait_for_a_slice_and_outlive_their_triggerer(airflow):
    run = airflow.run("wait_for_capacity")
    (found,) = wait_for(lambda: ready_clusters(airflow))
    name = found.record.slices[0].name

    def both_wait():
        return {task: run.states()[task] for task in ("cluster", "free")} == {"cluster": "deferred", "free": "deferred"}

    wait_for(both_wait, every_s=0.5)
    wait_for(lambda: "0 of 1 whole idle slices v6e:2x2" in run.log(airflow.home, "cluster"))
    airflow.kill_and_restart("triggerer")
    # Had either been over, or failed, with its triggerer, it would not be there to see the slice come.
    assert both_wait()
    assert found.record.supervisor.signal(signal.SIGUSR1)
    assert run.end(within_s=100) == "success"
    assert run.result("free") == {"cluster": found.record.name, "slices": [name]}
    assert run.result("begin") == f"slice {name} of cluster {found.record.name} is idle"
    assert run.result("cluster")["slices"] == [{"name": name, "hosts": 1, "chips": 4, "whole": True}]
    assert cluster.living(airflow.home.simulated) == []
    said = run.log(airflow.home, "free")
    assert "waiting for 1 whole idle slice v6e:2x2: " in said


def test_a_sensor_whose_time_is_over_fails_for_good_and_says_what_it_saw(airflow):
    run = airflow.run("in_vain")
    assert run.end(within_s=60) == "failed"
    (row,) = airflow.api.task_instances(run.dag_id, run.run_id)
    assert (row["state"], row["try_number"]) == ("failed", 1)
    assert "Not 1 whole idle slice v6e:4x4 within 4 s (timeout): none present." in run.last_words("never")
