"""Programs of the author's under a real scheduler: the example DAG, a function on each host and a script."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated import cluster
from tests.real_airflow import real_airflow

DAGS = Path(__file__).parents[2] / "dags"


@pytest.mark.airflow
@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_a_decorated_function_and_a_script_run_on_whole_slices_and_leave_nothing(tmp_path):
    dags = tmp_path / "dags"
    dags.mkdir()
    shutil.copy(DAGS / "03_any_ray_program.py", dags)
    shutil.copytree(DAGS / "burn_in", dags / "burn_in")
    with real_airflow(tmp_path / "airflow" / ".demo", dags, {}) as airflow:
        run = airflow.run("burn_in")
        state = run.end(within_s=240)
        assert state == "success", {task: run.last_words(task) for task, end in run.states().items() if end == "failed"}
        assert run.result("prove") == [{"host": host, "chips": 4, "of": 16} for host in range(4)]
        assert run.result("verdict") == "4 hosts, 16 of 16 chips proven"
        value = run.result("transfers")
        assert (value["hosts"], value["chips"], value["value"], value["failures"]) == (4, 16, None, 0)
        log = run.log(airflow.home, "transfers")
        assert "4000000 bytes at worker 3" in log
        (told,) = airflow.home.storage.glob("burn_in/transfers/**/*.progress.json")
        progress = json.loads(told.read_text())
        assert (progress["phase"], progress["unit"], progress["done"]) == ("running", "round", 3)
        assert cluster.living(airflow.home.simulated) == []
