"""What an author writes: dependencies, serialisation, and what is refused when the DAG is parsed."""

from __future__ import annotations

import copy
import json
import logging
from datetime import timedelta
from unittest.mock import Mock

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_raytpu import CheckpointPolicy, Deadlines, RetryBudget, Rollout, TpuSlice
from airflow_raytpu.model.errors import (
    BatchSizeError,
    CodeError,
    DeadlineError,
    PathError,
    RequestError,
    SliceShapeError,
)
from airflow_raytpu.model.kuberay import BucketMount, CpuGroup, KubeRayOptions, Provisioning
from airflow_raytpu.operators import (
    IterJaxBatchInferenceOperator,
    JaxTrainerOperator,
    RayServeDeployOperator,
    RayTpuClusterOperator,
    RayTpuJobOperator,
)
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, running, starting

FOUND = "json:dumps"


def train(**more):
    return JaxTrainerOperator(**{"task_id": "train", "train_loop": FOUND, "slice": "v6e:4x4", **more})


def score(**more):
    settings = {
        "task_id": "score",
        "predict": FOUND,
        "slice": "v6e:4x4",
        "input": "/in",
        "output": "/out",
        "batch_size": 32,
    }
    return IterJaxBatchInferenceOperator(**{**settings, **more})


def serve(**more):
    return RayServeDeployOperator(**{"task_id": "serve", "app": FOUND, "cluster": "shared", **more})


@pytest.fixture
def dag():
    """The main job, as the README has it."""
    with DAG("digits", schedule=None) as dag:
        cluster = RayTpuClusterOperator(task_id="cluster", slice="{{ params.slice }}")

        @task
        def split():
            return {"train": "/x"}

        data = split()
        trained = JaxTrainerOperator(
            task_id="train", cluster=cluster, train_loop=FOUND, datasets={"train": data["train"]}
        )
        scored = score(cluster=cluster.output, slice=None, model=trained.output["checkpoint"])
        served = serve(cluster=cluster, model=trained.output["checkpoint"])
        trained >> scored >> served
        cluster.teardown(after=[served])
    return dag


# --- a good DAG --------------------------------------------------------------------------------------------------


def test_a_job_follows_its_cluster_and_its_model_by_itself(dag):
    assert dag.get_task("train").upstream_task_ids == {"cluster", "split"}
    assert dag.get_task("score").upstream_task_ids == {"cluster", "train"}


def test_the_cluster_is_a_setup_and_its_teardown_runs_whatever_happened(dag):
    cluster, last = dag.get_task("cluster"), dag.get_task("cluster_teardown")
    assert cluster.is_setup
    assert last.is_teardown
    assert last.upstream_task_ids == {"cluster", "train", "score", "serve"}
    assert last.trigger_rule == "all_done_setup_success"
    assert not last.on_failure_fail_dagrun


def test_a_teardown_waits_for_every_user_of_its_cluster_wherever_it_is_written():
    with DAG("early", schedule=None) as dag:
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
        before = train(task_id="before", cluster=cluster)
        last = cluster.teardown()
        train(task_id="later", cluster=cluster.output)
        train(task_id="elsewhere")
    assert before.task_id in last.upstream_task_ids
    assert dag.get_task("cluster_teardown").upstream_task_ids == {"cluster", "before", "later"}


def test_a_mapped_job_may_run_on_a_cluster():
    with DAG("mapped", schedule=None) as dag:
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
        JaxTrainerOperator.partial(task_id="train", train_loop=FOUND, cluster=cluster.output).expand(
            train_loop_config=[{"steps": 1}, {"steps": 2}]
        )
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert again.get_task("train").upstream_task_ids == {"cluster"}


def test_a_teardown_waits_for_mapped_users_however_they_name_the_cluster():
    """Else it takes the cluster away from under them, and they begin before it is there."""
    with DAG("mapped", schedule=None) as dag:
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
        configs = [{"steps": 1}, {"steps": 2}]
        for name, stated in {"by_task": cluster, "by_output": cluster.output}.items():
            JaxTrainerOperator.partial(task_id=name, train_loop=FOUND, cluster=stated).expand(train_loop_config=configs)

            @task.ray_tpu(task_id=f"function_{name}", cluster=stated)
            def work(number):
                return number

            work.expand(number=[1, 2])
        JaxTrainerOperator.partial(task_id="elsewhere", train_loop=FOUND, slice="v6e:4x4").expand(
            train_loop_config=configs
        )
        cluster >> dag.get_task("elsewhere")
        cluster.teardown()
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    users = {"by_task", "by_output", "function_by_task", "function_by_output"}
    assert again.get_task("cluster_teardown").upstream_task_ids == {"cluster", *users}
    assert all(again.get_task(user).upstream_task_ids == {"cluster"} for user in users)


def test_every_argument_for_kubernetes_survives_serialisation():
    options = KubeRayOptions(
        provisioning=Provisioning.SPOT,
        env={"DAY": "{{ ds }}"},
        tolerations=({"key": "a", "operator": "Exists"},),
        cpu_groups=(CpuGroup(name="load", replicas=2, cpus=4),),
        buckets=(BucketMount(bucket="data", path="/data"),),
    )
    plain = {**options.to_dict(), "env": {"DAY": "{{ ds }}"}}
    with DAG("options", schedule=None) as dag:
        RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4*2", name="{{ ds }}", min_idle_slices=1, kuberay=options)
        train(kuberay=options)
        score(kuberay=plain)
        RayTpuJobOperator.partial(task_id="mapped", run=FOUND, slice="v6e:4x4", kuberay=options).expand(op_args=[[1]])
    data = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    DagSerialization.validate_schema(data)
    again = DagSerialization.from_dict(data)
    for task_id in ("cluster", "train", "score"):
        assert again.get_task(task_id).kuberay == plain
        assert dag.get_task(task_id).kuberay == plain
    assert again.get_task("cluster").name == "{{ ds }}"
    assert " at 0x" not in json.dumps(data)


def test_the_dag_survives_serialisation(dag):
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(again.task_ids) == set(dag.task_ids)
    assert [link.name for link in again.get_task("serve").operator_extra_links] == ["Endpoint", "Ray dashboard"]
    assert again.get_task("cluster").is_setup
    assert again.get_task("cluster_teardown").is_teardown


@pytest.mark.parametrize("make", [train, score, serve, lambda: RayTpuClusterOperator(task_id="c", slice="v6e:4x4")])
def test_an_operator_can_be_copied_as_airflow_copies_it(make):
    operator = make()
    again = copy.deepcopy(operator)
    assert {name: getattr(again, name) for name in operator.template_fields} == {
        name: getattr(operator, name) for name in operator.template_fields
    }
    assert operator.prepare_for_execution().task_id == operator.task_id


@pytest.mark.parametrize("text", ["v6e:4x4", "v6e-16", "TPU-V6E 4x4", TpuSlice("trillium", "4x4")])
def test_a_slice_may_be_written_in_any_way(text):
    assert train(slice=text).slice == "v6e:4x4"


def test_templates_are_left_for_later():
    operator = score(
        slice="{{ params.slice }}", batch_size="{{ params.batch }}", ragged="{{ params.ragged }}", input="{{ ds }}"
    )
    assert operator.slice == "{{ params.slice }}"
    train(storage_path="{{ var.value.root }}", train_loop_config={"global_batch_size": "{{ params.batch }}"})
    serve(route_prefix="{{ params.route }}")


def test_tasks_in_a_group_and_the_teardown_share_the_group():
    from airflow.sdk import TaskGroup

    with DAG("grouped", schedule=None) as dag, TaskGroup("work"):
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
        cluster.teardown(after=train(cluster=cluster))
    assert set(dag.task_ids) == {"work.cluster", "work.train", "work.cluster_teardown"}


# --- refused when the DAG is parsed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        pytest.param(
            lambda: train(slice="v6e:4x5"),
            SliceShapeError,
            r"^v6e has no topology 4x5\.\n  Nearest: 4x4 \(16 chips, 4 hosts\) and 4x8 \(32 chips, 8 hosts\)\.",
            id="topology",
        ),
        pytest.param(
            lambda: train(slice="v9:4x4"), SliceShapeError, "no TPU generation 'v9'.*\n.*v6e", id="generation"
        ),
        pytest.param(lambda: train(slice=16), SliceShapeError, r"slice is a int, 16\.\n.*v6e:4x4", id="slice type"),
        pytest.param(
            lambda: RayTpuClusterOperator(task_id="c", slice="v6e:4x5"), SliceShapeError, "4x5", id="cluster's topology"
        ),
        pytest.param(
            lambda: train(train_loop="digits.trian:loop"),
            CodeError,
            r"^train_loop digits\.trian:loop: .*\n.*Looked in",
            id="loop",
        ),
        pytest.param(lambda: score(predict="json:predcit"), CodeError, r"^predict .*defines no predcit", id="predict"),
        pytest.param(lambda: score(load="json:laod"), CodeError, r"^load .*\n.*It defines load", id="load"),
        pytest.param(lambda: serve(app="nope:build"), CodeError, "^app .*no module nope", id="app"),
        pytest.param(
            lambda: score(batch_size=1000),
            BatchSizeError,
            r"^batch_size is 1000, .* 16 chips \(4 hosts x 4 of v6e 4x4\)\.\n  Use a multiple of 16: 992 or 1008\.",
            id="batch size",
        ),
        pytest.param(lambda: score(batch_size="many"), BatchSizeError, "batch_size is 'many'", id="batch size text"),
        pytest.param(
            lambda: train(train_loop_config={"global_batch_size": 100}),
            BatchSizeError,
            "global_batch_size is 100",
            id="training batch",
        ),
        pytest.param(lambda: score(input="s3://b/x"), PathError, r"'s3://b/x' is not.*\n.*gs://", id="input scheme"),
        pytest.param(lambda: train(storage_path="runs"), PathError, "'runs' is not", id="storage scheme"),
        pytest.param(lambda: train(datasets={"train": "hdfs://x"}), PathError, "'hdfs://x'", id="data set scheme"),
        pytest.param(
            lambda: score(ragged="trim"),
            RequestError,
            r"ragged is 'trim'\.\n  Use one of pad, drop, raise",
            id="ragged",
        ),
        pytest.param(
            lambda: train(resume="maybe"), RequestError, 'resume is \'maybe\'.\n.*"auto" or "never"', id="resume"
        ),
        pytest.param(lambda: train(slice=None), RequestError, "Neither cluster nor slice", id="nowhere to run"),
        pytest.param(lambda: serve(cluster=None), RequestError, "needs a cluster that outlives", id="serving alone"),
        pytest.param(lambda: train(slice="v6e:2x4/4x4"), SliceShapeError, "no cluster is made of parts", id="a part"),
        pytest.param(lambda: serve(cluster="No_Name"), RequestError, "cannot be a cluster's name", id="cluster name"),
        pytest.param(lambda: train(ttl=timedelta(0)), DeadlineError, "given back at once", id="ttl"),
        pytest.param(lambda: serve(route_prefix="x"), RequestError, 'slash: "/x"', id="route"),
        pytest.param(
            lambda: train(deadlines=Deadlines(stall=timedelta(minutes=2), total=timedelta(minutes=1))),
            DeadlineError,
            "could never be reached",
            id="deadlines",
        ),
        pytest.param(
            lambda: train(checkpoint=CheckpointPolicy(keep=0)), RequestError, "keep=0", id="checkpoint policy"
        ),
        pytest.param(
            lambda: train(retry_budget=RetryBudget(failures=-1)), RequestError, "failures=-1", id="retry budget"
        ),
        pytest.param(
            lambda: serve(rollout=Rollout(smoke=[{"body": 1}])), RequestError, "unknown keys", id="smoke request"
        ),
    ],
)
def test_a_literal_that_cannot_work_is_refused_at_once(make, error, message):
    with DAG("wrong", schedule=None), pytest.raises(error, match=message):
        make()


def test_a_batch_is_checked_against_the_slice_of_the_cluster_it_runs_on():
    with DAG("wrong", schedule=None):
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
        for number, way in enumerate((cluster, cluster.output)):
            with pytest.raises(BatchSizeError, match="16 chips"):
                score(task_id=f"score_{number}", cluster=way, slice=None, batch_size=24)


def test_a_job_asks_for_the_shape_of_its_cluster():
    with DAG("wrong", schedule=None):
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
        with pytest.raises(SliceShapeError, match="asks for v6e:2x2 on a cluster of v6e:4x4"):
            train(cluster=cluster, slice="v6e:2x2")


def test_a_dataset_may_have_any_name():
    train(datasets={"storage_path": "/x", "slice": "/y", "two words": "/z"})


# --- refused when the task runs, before anything exists ----------------------------------------------------------


async def refusal(operator, **fields):
    for name, value in fields.items():
        setattr(operator, name, value)
    with pytest.raises(AirflowFailException) as caught:
        await operator.aexecute(context(TaskInstance()))
    return str(caught.value)


@pytest.mark.parametrize(
    ("make", "rendered", "message"),
    [
        (lambda: train(slice="{{ x }}"), {"slice": "v6e:4x5"}, "v6e has no topology 4x5."),
        (lambda: score(batch_size="{{ x }}"), {"batch_size": "1000"}, "batch_size is 1000"),
        (lambda: score(batch_size="{{ x }}"), {"batch_size": "lots"}, "batch_size is 'lots'"),
        (lambda: score(input="{{ x }}"), {"input": "/nothing/here"}, "/nothing/here does not exist."),
        (lambda: score(ragged="{{ x }}"), {"ragged": "trim"}, "ragged is 'trim'."),
        (lambda: score(model="{{ x }}"), {"model": None}, "model is None"),
        (lambda: score(output="{{ x }}"), {"output_path": "ftp://x"}, "'ftp://x' is not"),
        (lambda: train(cluster="{{ x }}"), {"cluster": {"step": 1}}, "which is no cluster"),
        (
            lambda: train(cluster="{{ x }}"),
            {"cluster": {"cluster": "c", "slice": "v6e:2x2"}},
            "on a cluster of v6e:2x2",
        ),
        (lambda: train(resume="{{ x }}"), {"resume": "maybe"}, "resume is 'maybe'."),
        (train, {"train_loop_config": {"when": timedelta(1)}}, "train_loop_config['when'] is a timedelta"),
        (train, {"train_loop_config": {"rate": float("nan")}}, "train_loop_config['rate'] is nan"),
        (
            lambda: train(train_loop_config={"global_batch_size": 10}, slice="{{ x }}"),
            {"slice": "v6e:4x4"},
            "is 10, which",
        ),
    ],
)
async def test_a_rendered_value_that_cannot_work_fails_for_good(make, rendered, message, place_with, tmp_path):
    backend = ScriptedBackend([running()])
    place_with(backend)
    operator = make()
    fields = {"input": str(tmp_path), **rendered} if hasattr(operator, "input") else rendered
    (tmp_path / "a.parquet").write_text("x")
    assert message in await refusal(operator, **fields)
    assert backend.calls == []


async def test_what_inference_asks_for(place_with, tmp_path):
    from airflow.sdk.exceptions import TaskDeferred

    backend = ScriptedBackend([starting()])
    place_with(backend)
    (tmp_path / "a.parquet").write_text("x")
    operator = score(
        input=str(tmp_path), output=str(tmp_path / "out"), batch_size="64", cluster={"cluster": "c", "slice": "v6e:4x4"}
    )
    with pytest.raises(TaskDeferred):
        await operator.aexecute(context(TaskInstance(task_id="score")))
    assert dict(backend.requests[0].arguments) == {
        "predict": FOUND,
        "load": None,
        "model": None,
        "input": f"file://{tmp_path}",
        "output": f"file://{tmp_path}/out",
        "batch_size": 64,
        "ragged": "pad",
        "columns": None,
    }


async def test_warnings_and_notes_are_told_to_the_log(place_with, monkeypatch):
    from airflow.sdk.exceptions import TaskDeferred

    place_with(ScriptedBackend([starting()]))
    operator = train(execution_timeout=timedelta(minutes=30), slice="{{ x }}")
    operator.slice = "v6e:4x4*11"
    log = Mock()
    monkeypatch.setattr(JaxTrainerOperator, "log", log)
    with pytest.raises(TaskDeferred):
        await operator.aexecute(context(TaskInstance()))
    assert {(call.args[0], call.args[2].code) for call in log.log.call_args_list} == {
        (logging.WARNING, "RT113"),
        (logging.INFO, "RT119"),
    }
