"""The example DAGs: read by Airflow without an error, and the main job run to its end by a real scheduler."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_raytpu.demo import processes
from airflow_raytpu.demo.home import DemoHome

REPOSITORY = Path(__file__).parents[2]
DAGS = REPOSITORY / "dags"

READ = """
import json, pathlib, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
bag = DagBag(sys.argv[1], bundle_path=None)
heavy = sorted({"ray", "jax", "kubernetes", "kubernetes_asyncio"} & set(sys.modules))
for dag in bag.dags.values():
    DagSerialization.from_dict(DagSerialization.to_dict(dag))
files = sorted({pathlib.Path(dag.fileloc).name for dag in bag.dags.values()})
print(json.dumps({"errors": bag.import_errors, "files": files, "heavy": heavy}))
"""


def test_airflow_reads_every_example_and_loads_nothing_heavy(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(DAGS))
    done = subprocess.run([sys.executable, "-c", READ, str(DAGS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["errors"] == {}
    assert found["heavy"] == []
    assert found["files"] == sorted(path.name for path in DAGS.glob("[0-9]*.py"))


@pytest.mark.airflow
@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_the_main_job_trains_infers_and_serves_and_leaves_nothing(tmp_path):
    """The demo is the test: a real Airflow on a free port, the DAG of the repository, in a path with a space."""
    home = DemoHome(root=tmp_path / "a b" / ".demo", dags=DAGS, port=0)
    done = subprocess.run(
        [sys.executable, "-m", "airflow_raytpu.cli", "demo", "--exit", "--port", "0", "--home", str(home.root)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.search(r"test accuracy +([0-9.]+)", done.stdout)
    assert accuracy, done.stdout
    assert float(accuracy[1]) >= 0.95
    assert re.search(r"rows +357 in, 357 out", done.stdout), done.stdout
    assert re.search(r"it answered +200 ", done.stdout), done.stdout
    assert re.search(r"trained +300 steps on 16 devices of 4 processes", done.stdout), done.stdout
    assert processes.marked(home.root) == []
    assert not list(home.simulated.glob("*/state.json"))
    subprocess.run(
        [sys.executable, "-m", "airflow_raytpu.cli", "demo", "--clean", "--home", str(home.root)],
        check=True,
        timeout=60,
    )
    assert not home.root.exists()
    assert not home.simulated.exists()
