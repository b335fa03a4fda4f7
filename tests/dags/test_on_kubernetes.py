"""The main job, and one with a cluster of its own, by a real Airflow on Kubernetes' double and real slices."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.kubernetes_cluster import OPTIONS, Kubernetes, running_kubernetes
from tests.real_airflow import RealAirflow, real_airflow

pytestmark = [pytest.mark.airflow, pytest.mark.cluster, pytest.mark.timeout(900)]

DAGS = Path(__file__).parents[2] / "dags"

OWN = """
from datetime import timedelta
from airflow.sdk import DAG
from airflow_raytpu import Deadlines
from airflow_raytpu.operators import JaxTrainerOperator

def loop(config):
    import jax
    import ray.train
    for step in range(1, config["steps"] + 1):
        ray.train.report({"step": step, "devices": jax.device_count()})

with DAG("own", schedule=None):
    JaxTrainerOperator(
        task_id="train",
        slice="v6e:2x4@4t",
        train_loop=loop,
        train_loop_config={"steps": 5},
        deadlines=Deadlines(slice_wait=timedelta(minutes=10)),
    )
"""


@pytest.fixture(scope="module")
def kubernetes():
    with running_kubernetes() as found:
        yield found


@pytest.fixture(scope="module")
def airflow(kubernetes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("k8s")
    dags = folder / "dags"
    shutil.copytree(DAGS, dags, ignore=shutil.ignore_patterns("0[2-9]*", "__pycache__"))
    (dags / "own.py").write_text(OWN)
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig(kubernetes)))
    place = {
        "backend": "kuberay",
        "kubernetes_conn_id": "k8s",
        "storage": (folder / "storage").as_uri(),
        "options": OPTIONS,
    }
    connections = {
        "AIRFLOW_CONN_RAYTPU_DEFAULT": {"conn_type": "raytpu", "extra": place},
        "AIRFLOW_CONN_K8S": {"conn_type": "kubernetes", "extra": {"kube_config_path": str(folder / "kubeconfig")}},
    }
    environment = {name: json.dumps(value) for name, value in connections.items()}
    with real_airflow(folder / ".demo", dags, environment) as found:
        yield found


def kubeconfig(kubernetes: Kubernetes) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": kubernetes.k.url}}],
        "users": [{"name": "u", "user": {"token": kubernetes.k.token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def test_a_job_of_its_own_is_a_rayjob_and_leaves_nothing(airflow: RealAirflow, kubernetes: Kubernetes) -> None:
    run = airflow.run("own")
    assert run.end(240) == "success", run.last_words("train")
    result = run.result("train")
    assert (result["step"], result["devices"], result["processes"]) == (5, 8, 2)
    assert kubernetes.k.count("create", "rayjobs", status=201) == 1
    for kind in ("rayjobs", "rayclusters", "pods"):
        assert kubernetes.k.items(kind) == []


@pytest.mark.long
def test_the_main_job_trains_infers_and_serves(airflow: RealAirflow, kubernetes: Kubernetes) -> None:
    run = airflow.run("digits")
    end = run.end(480)
    assert end == "success", {task: run.last_words(task) for task, state in run.states().items() if state == "failed"}
    assert run.result("evaluate")["accuracy"] >= 0.95
    assert run.result("evaluate")["rows"] == 357
    assert (run.result("train")["step"], run.result("train")["devices"]) == (300, 16)
    assert set(run.states().values()) == {"success"}
    # One cluster for all of it, and none left; its jobs are Ray's, not KubeRay's.
    assert kubernetes.k.count("create", "rayclusters", status=201) == 1
    for kind in ("rayclusters", "pods"):
        assert kubernetes.k.items(kind) == []
