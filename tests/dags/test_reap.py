"""The maintenance example under a real Airflow, which is asked what is at work. No Ray: the clusters are dead ones."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated import cluster, state
from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.backends.simulated.state import Phase
from airflow_raytpu.model.identity import Identity
from tests.real_airflow import RealAirflow, real_airflow
from tests.simulated_cluster import cluster_request, wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(240)]

EXAMPLE = Path(__file__).parents[2] / "dags" / "04_reap_orphans.py"
WORK = """
import time
from pathlib import Path
from airflow.sdk import DAG, task

with DAG("work", schedule=None):
    @task
    def cluster():
        return "it has come up"

    @task
    def train():
        while not Path({done!r}).exists():
            time.sleep(0.2)

    cluster() >> train()
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("signals") / "done"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, done: Path) -> Iterator[RealAirflow]:
    dags = tmp_path_factory.mktemp("dags")
    (dags / "work.py").write_text(WORK.format(done=str(done)))
    # Nothing but what the test starts.
    (dags / EXAMPLE.name).write_text(EXAMPLE.read_text().replace('"@hourly"', "None"))
    with real_airflow(tmp_path_factory.mktemp("airflow") / ".demo", dags, {}) as found:
        yield found


def leave(root: Path, owner: Identity) -> str:
    """A cluster that *owner* left dead three hours ago; its name."""
    request = replace(cluster_request("cluster", "v6e:2x2"), identity=owner)
    found = cluster.start(root, request)
    dead = ProcessId(pid=2**22 - 1, began="boot:1")
    state.write(found.folder, replace(found.record, created_at=1.0, supervisor=dead, phase=Phase.READY))
    at = time.time() - 3 * 3600
    os.utime(found.folder / "heartbeat", (at, at))
    return request.name


def test_it_removes_what_no_task_needs_and_asks_airflow_first(airflow, done, monkeypatch):
    monkeypatch.setattr(cluster, "_spawn", lambda found: None)
    root = cluster.root_folder(airflow.home.simulated)
    work = airflow.run("work")
    wait_for(lambda: work.states() == {"cluster": "success", "train": "running"}, every_s=0.5)
    owner = Identity(deployment="demo", dag_id="work", task_id="cluster", run_id=work.run_id)
    needed = leave(root, owner)
    orphan = leave(root, replace(owner, run_id="deleted__2026-11-29"))
    theirs = leave(root, replace(owner, deployment="another", run_id="deleted__2026-11-29"))

    first = airflow.run("reap_orphans")
    assert first.end(within_s=60) == "success"
    told = {row["name"]: (row["fate"], row["says"]) for row in first.result("reap")}
    assert told == {needed: ("spared", "Airflow has it at work: train is running"), orphan: ("reaped", "")}
    assert sorted(path.name for path in root.iterdir()) == sorted([needed, theirs])
    assert f"reaped cluster {orphan} of work/cluster (deleted__2026-11-29, attempt 1)" in first.log(
        airflow.home, "reap"
    )

    done.touch()
    assert work.end(within_s=60) == "success"
    second = airflow.run("reap_orphans")
    assert second.end(within_s=60) == "success"
    assert [(row["name"], row["fate"]) for row in second.result("reap")] == [(needed, "reaped")]
    assert [path.name for path in root.iterdir()] == [theirs]
