"""``airflow-raytpu explain`` as a user starts it: in a process of its own, with no database behind it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from airflow_raytpu import cli
from airflow_raytpu.model import application
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.identity import CLUSTER_NAME_LIMIT, Identity

EXAMPLES = Path(__file__).parents[3] / "dags"

MORE = """
from datetime import timedelta
from airflow.sdk import DAG, Param
from airflow_raytpu import slice_params
from airflow_raytpu.operators import *

print("a DAG file may print")

with DAG("more", schedule=None, params={"steps": Param(type="integer"), **slice_params(default="v6e:4x4")}):
    cluster = RayTpuClusterOperator(task_id="cluster", slice="{{ params.slice }}")
    JaxTrainerOperator.partial(task_id="train", train_loop="json:dumps", cluster=cluster.output).expand(
        train_loop_config=[{"steps": "{{ params.steps }}"}, {"steps": 2}])
    IterJaxBatchInferenceOperator(
        task_id="a_task_whose_name_goes_on_and_on", predict="json:dumps", ragged="drop",
        batch_size="{{ params.batch }}",
        input="gs://bucket/" + "long/" * 30 + "{{ ds }}", output="/out/{{ run_id }}", slice="v6e:4x4*2",
        storage_path="gs://bucket/{{ var.value.root }}", execution_timeout=timedelta(minutes=30))
    RayServeDeployOperator(task_id="serve", app="json:dumps", cluster="shared")
"""
SHARED = """
from airflow.sdk import DAG
from airflow_raytpu.operators import RayTpuClusterOperator

with DAG("shared", schedule=None, params={"team": "a", "nobody": ""}):
    RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4", name="team-{{ params.team }}", conn_id="prod")
    RayTpuClusterOperator(task_id="nameless", slice="v6e:4x4", name="{{ params.nobody }}", conn_id="prod")
"""
SERVED = """
from airflow.sdk import DAG
from airflow_raytpu.operators import JaxTrainerOperator, RayServeDeployOperator

with DAG("served", schedule=None, params={"team": "a"}):
    train = JaxTrainerOperator(task_id="train", train_loop="json:dumps", slice="v6e:4x4", conn_id="prod")
    RayServeDeployOperator(
        task_id="serve", app="json:dumps", model=train.output["checkpoint"], slice="v6e:2x2",
        name="digits-{{ params.team }}", conn_id="prod")
"""
ELASTIC = """
from airflow.sdk import DAG
from airflow_raytpu.operators import JaxTrainerOperator

with DAG("elastic", schedule=None):
    JaxTrainerOperator(task_id="train", train_loop="json:dumps", slice="v6e:4x4", elastic=(1, 3), conn_id="prod")
"""
BROKEN = """
from airflow.sdk import DAG
from airflow_raytpu.operators import JaxTrainerOperator

with DAG("broken", schedule=None):
    JaxTrainerOperator(task_id="train", train_loop="json:dumps", slice="v6e:4x5")
"""
# Runs the command, and tells on its last line what it had imported.
RUN = """
import atexit, sys
heavy = ("ray", "jax", "numpy", "pandas", "pyarrow", "kubernetes", "kubernetes_asyncio", "google.cloud")
atexit.register(lambda: print("HEAVY", [name for name in heavy if name in sys.modules], file=sys.stderr))
import socket
def refuse(*_):
    raise AssertionError("a connection was made")
socket.socket.connect = refuse
from airflow_raytpu.cli import main
main()
"""


@pytest.fixture
def explain(tmp_path):
    home = tmp_path / "airflow"
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:////nonexistent/airflow.db",
        "COLUMNS": "200",
    }
    environment.pop("PYTHONPATH", None)

    def run(*arguments, folder=EXAMPLES):
        command = [sys.executable, "-c", RUN, "explain", *arguments, "--dags-folder", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert "HEAVY []" in done.stderr, done.stderr
        return done

    return run


@pytest.fixture
def here(monkeypatch):
    """The same in this process, for speed."""
    # Before the command, which would silence all logs of whoever imports Airflow after it.
    importlib.import_module("airflow.settings")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("AIRFLOW__LOGGING__LOGGING_LEVEL", "CRITICAL")

    def run(*arguments, folder=EXAMPLES):
        return CliRunner().invoke(cli.commands, ["explain", *arguments, "--dags-folder", str(folder)])

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("dags")
    (place / "more.py").write_text(MORE)
    (place / "broken.py").write_text(BROKEN)
    return place


def test_the_main_job(explain):
    done = explain("digits")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line and line[0] != " "] == [
        "cluster  RayTpuClusterOperator on v6e 4x4 (16 chips, 4 hosts of",
        "train  JaxTrainerOperator on v6e 4x4 (16 chips, 4 hosts of ct6e-standard-4t)",
        "infer  IterJaxBatchInferenceOperator on v6e 4x4 (16 chips, 4 hosts of",
        "serve  RayServeDeployOperator on v6e 4x4 (16 chips, 4 hosts of ct6e-standard-4t)",
    ]
    assert "  deadlines   slice 10 min | start 20 min | stall 5 min | total 1 h\n" in done.stdout
    assert "  storage     <raytpu_default>/digits/train/<run>/{checkpoints,outbox}\n" in done.stdout
    assert "  runs as     digits-infer-<run> on the cluster of task cluster\n" in done.stdout
    assert "  model       <train.checkpoint>\n" in done.stdout
    assert done.stdout.count("  costs       16 chip-hours an hour") == 4
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_what_would_go_wrong_with_other_parameters(here):
    conf = json.dumps({"accelerator": "v5p", "topology": "4x4x8", "batch_size": 100})
    done = here("digits", "--output", "json", "--conf", conf)
    assert done.exit_code == 1
    asked = {one["task"]: one for one in json.loads(done.stdout)}
    assert asked["train"]["slice"]["hosts"] == 32
    assert [finding["code"] for finding in asked["train"]["findings"]] == ["RT123"]
    assert asked["train"]["findings"][0]["fact"] == "docs/preflight.md#rt123"
    assert asked["infer"]["findings"] == []
    assert asked["cluster"]["slice"]["chip_hours_per_hour"] == 128


def test_a_conf_that_airflow_would_refuse(here):
    done = here("digits", "--conf", '{"topology": "4x5"}')
    assert isinstance(done.exception, RequestError)
    assert "Airflow would refuse the parameter topology: '4x5'" in str(done.exception)
    assert done.stdout == ""


def test_mapped_tasks_open_templates_and_long_lines(here, folder):
    done = here("more", "--output", "yaml", folder=folder)
    assert done.exit_code == 0, done.stderr
    cluster, train, score, serve = yaml.safe_load(done.stdout)
    assert (train["copies"], cluster["copies"]) == (2, None)
    assert train["cluster"] == "of task cluster"
    assert score["storage"] == "gs://bucket/{{ var.value.root }}/more/a_task_whose_name_goes_on_and_on/<run>"
    assert score["addresses"]["output"] == "/out/<run>"
    assert score["deadlines"]["total"] == 29 * 60
    assert [finding["code"] for finding in score["findings"]] == ["RT124", "RT113", "RT134"]
    assert (serve["slice"], serve["cluster"]) == (None, "shared")
    assert [finding["code"] for finding in serve["findings"]] == ["RT127", "RT132"]
    text = here("more", folder=folder).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "  mapped      2 times; this is the first\n" in text


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["mor"], 2, "There is no DAG 'mor' in {folder}. Did you mean more?"),
        (["nothing"], 2, "There are: more.\n  {folder}/broken.py cannot be imported: "),
        (["broken"], 1, "SliceShapeError: v6e has no topology 4x5.\n  Nearest: 4x4"),
        (["more", "--task", "trian"], 2, "The task 'trian' of more does not exist. Did you mean train?"),
    ],
)
def test_what_is_not_there(here, folder, arguments, status, says):
    done = here(*arguments, folder=folder)
    assert (done.exit_code, done.stdout) == (status, "")
    assert says.format(folder=folder) in done.stderr
    assert "Traceback" not in done.stderr


def test_tasks_of_others(here):
    done = here("digits", "--task", "data")
    assert done.exit_code == 2
    assert "The task 'data' of digits is none of this package's." in done.stderr


@pytest.mark.parametrize(("conf", "says"), [("[1]", "not a JSON object"), ("{", "not JSON")])
def test_a_conf_that_is_no_json(conf, says):
    result = CliRunner().invoke(cli.commands, ["explain", "digits", "--conf", conf])
    assert result.exit_code == 2
    assert says in result.output


ON_KUBERNETES = """
from airflow.sdk import DAG
from airflow_raytpu.operators import JaxTrainerOperator, RayTpuClusterOperator

def loop(config): ...

with DAG("prod"):
    cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4*2", conn_id="prod")
    JaxTrainerOperator(task_id="on_it", train_loop=loop, cluster=cluster, conn_id="prod")
    JaxTrainerOperator(
        task_id="own", train_loop=loop, slice="v6e:4x8", conn_id="prod", kuberay={"provisioning": "spot", "grace_s": 25}
    )
    JaxTrainerOperator(task_id="wrong", train_loop=loop, slice="v6e:4x8", conn_id="prod", kuberay={"imgae": "x"})
"""


@pytest.fixture
def production(tmp_path, monkeypatch):
    extra = {"backend": "kuberay", "storage": "gs://bucket/runs", "namespace": "ml", "image": "eu/ray:1"}
    monkeypatch.setenv("AIRFLOW_CONN_PROD", json.dumps({"conn_type": "raytpu", "extra": extra}))
    (tmp_path / "prod.py").write_text(ON_KUBERNETES.rpartition('    JaxTrainerOperator(task_id="wrong"')[0])
    return tmp_path


def test_the_kubernetes_objects(production, explain, here):
    # In a process of its own: nothing else may stand in the output, which is for kubectl.
    done = explain("prod", "--output", "manifest", folder=production)
    assert done.returncode == 0, done.stderr
    made = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    assert made.keys() == {"RayCluster", "RayJob"}
    assert made["RayCluster"]["metadata"]["name"] == "prod-cluster-<run>"
    assert made["RayCluster"]["spec"]["workerGroupSpecs"][0]["replicas"] == 2
    job = made["RayJob"]
    assert job["metadata"]["namespace"] == "ml"
    assert "gs://bucket/runs/prod/own/" in job["spec"]["entrypoint"]
    template = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert template["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    text = here("prod", folder=production).output
    assert "RayJob ml/prod-own-<run> on a cluster of its own" in text.replace("\n             ", "")


def test_a_shared_cluster_is_shown_as_it_will_be_in_every_run(here, production, tmp_path):
    (tmp_path / "shared.py").write_text(SHARED)
    done = here("shared", "--output", "yaml", folder=tmp_path)
    assert done.exit_code == 1, done.stderr
    named, nameless = yaml.safe_load(done.stdout)
    owner = Identity(deployment="airflow", dag_id="", task_id="team-a", run_id="")
    assert named["name"] == named["manifest"]["metadata"]["name"] == owner.remote_name(CLUSTER_NAME_LIMIT)
    assert named["manifest"]["metadata"]["annotations"]["airflow-raytpu/owner"] == owner.owner()
    assert [each["cause"] for each in nameless["findings"] if each["level"] == "error"] == [
        "name is '', which names no cluster."
    ]


def test_an_elastic_task_is_shown_with_both_numbers(here, production, tmp_path):
    (tmp_path / "elastic.py").write_text(ELASTIC)
    text = here("elastic", folder=tmp_path).output
    assert "train  JaxTrainerOperator on 1 to 3 x v6e 4x4 (48 chips, 12 hosts of" in text
    assert "  costs       48 chip-hours an hour at most\n" in text
    (job,) = yaml.safe_load_all(here("elastic", "--output", "manifest", folder=tmp_path).stdout)
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["maxReplicas"]) == (1, 3)


def test_a_service_is_shown_as_the_first_rollout_makes_it(here, production, tmp_path):
    (tmp_path / "served.py").write_text(SERVED)
    done = here("served", "--output", "yaml", folder=tmp_path)
    assert done.exit_code == 0, done.stderr
    (made,) = [each["manifest"] for each in yaml.safe_load(done.stdout) if each["task"] == "serve"]
    service = application.service_called("airflow", "digits-a")
    assert (made["kind"], made["metadata"]["name"]) == ("RayService", service.name)
    (stated,) = yaml.safe_load(made["spec"]["serveConfigV2"])["applications"]
    assert (stated["name"], stated["args"]["app"]) == ("digits-a", "json:dumps")


def test_options_that_cannot_be_are_refused_in_the_dag_file(here, production):
    (production / "prod.py").write_text(ON_KUBERNETES)
    done = here("prod", folder=production)
    assert done.exit_code == 1
    assert "Did you mean 'image'" in done.output
