"""``@task.ray_tpu``, ``@task.jax_train`` and ``@task.jax_batch``, as a DAG file uses them."""

from __future__ import annotations

import inspect
import json
import time

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from airflow_raytpu import CheckpointPolicy
from airflow_raytpu.model.errors import BatchSizeError, CodeError, RequestError
from airflow_raytpu.model.verdict import judge
from airflow_raytpu.operators import RayTpuClusterOperator
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, running, succeeded


@task.ray_tpu(slice="v6e:4x4", per_host=True)
def embed(x, scale=2):
    import os

    return [x * scale, os.environ["TPU_WORKER_ID"]]


@task.jax_train(slice="v6e:4x4", checkpoint=CheckpointPolicy(every_steps=7))
def loop(config):
    print(config["steps"])


@task.jax_batch(slice="v6e:4x4", output="{{ params.root }}/scores", batch_size=64, columns=["pixels"])
def predict(model, batch):
    return {"sum": batch["pixels"].sum(axis=-1) + model["bias"]}


async def ask(operator, place_with):
    backend = ScriptedBackend([running(at=time.time())])
    place_with(backend)
    with pytest.raises(TaskDeferred) as caught:
        await operator.aexecute(context(TaskInstance(task_id=operator.task_id)))
    return backend.requests[0], caught.value


def rendered(operator, **params):
    """As the worker renders it."""
    copy = operator.prepare_for_execution()
    copy.render_template_fields({"params": params, "ti": None, "run_id": "r"})
    return copy


# --- @task.ray_tpu -----------------------------------------------------------------------------------------------


async def test_the_functions_text_is_shipped_and_its_arguments_are_asked_for(place_with):
    with DAG("d", schedule=None):
        operator = embed(3, scale="{{ params.scale }}").operator
    request, _ = await ask(rendered(operator, scale=5), place_with)
    asked = dict(request.arguments)
    assert (asked["how"], asked["args"], asked["kwargs"]) == ("function", [3], {"scale": "5"})
    assert asked["per_host"]
    (shipped,) = operator.codes()[0].files().values()
    module, name = asked["entry"].split(":")
    assert name == "embed"
    assert module.startswith("dagcode_embed_")
    assert "@task" not in shipped.decode()
    _, first = inspect.getsourcelines(embed.function)
    assert shipped.decode().splitlines().index("def embed(x, scale=2):") == first


async def test_what_the_function_returned_is_the_tasks_value_and_its_cost_another_xcom(place_with):
    with DAG("d", schedule=None):
        operator = embed(3).operator
    request, _ = await ask(operator, place_with)
    assert not operator.multiple_outputs
    verdict = judge(succeeded({"value": [1, 2], "chip_hours": 0.5, "evictions": 1}), request.limits, time.time())
    event = {"request": request.outbox("request"), "verdict": verdict.to_dict(), "links": {}}
    ti = TaskInstance(task_id="embed")
    assert operator.finish(context(ti), json.loads(json.dumps(event))) == [1, 2]
    assert ti.xcoms["ray_tpu"] == {"chip_hours": 0.5, "evictions": 1}


async def test_it_is_the_same_without_the_triggerer(place_with, monkeypatch):
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0")
    place_with(ScriptedBackend([running(at=time.time()), succeeded({"value": {"a": 1}, "failures": 2})]))
    with DAG("d", schedule=None):
        operator = embed.override(deferrable=False)(3).operator
    ti = TaskInstance(task_id="embed")
    assert operator.is_async
    assert await operator.aexecute(context(ti)) == {"a": 1}
    assert ti.xcoms["ray_tpu"] == {"failures": 2}


def test_it_is_a_task_like_any_other():
    with DAG("d", schedule=None) as dag:
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")

        @task.ray_tpu(cluster=cluster)
        def first() -> dict[str, int]:
            return {"rows": 3}

        rows = first()["rows"]
        embed.override(cluster=cluster.output, slice=None).partial(scale=3).expand(x=[1, 2])
        embed.override(task_id="last")(rows)
        cluster.teardown()
    assert dag.get_task("first").multiple_outputs
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert again.get_task("first").upstream_task_ids == {"cluster"}
    assert again.get_task("embed").upstream_task_ids == {"cluster"}
    assert again.get_task("last").upstream_task_ids == {"first"}
    assert again.get_task("last").operator_name == "@task.ray_tpu"
    assert again.get_task("cluster_teardown").upstream_task_ids == {"cluster", "embed", "first"}


LIMIT = 3


def test_what_cannot_run_elsewhere_is_refused_when_the_dag_is_parsed():
    @task.ray_tpu(slice="v6e:4x4")
    def of_the_file():
        return LIMIT

    @task.ray_tpu(slice="v6e:4x4")
    def of_airflow(ds=None):
        return ds

    @task.ray_tpu
    def nowhere():
        return 1

    with DAG("d", schedule=None):
        with pytest.raises(CodeError, match="uses LIMIT from it, which is not shipped"):
            of_the_file()
        with pytest.raises(CodeError, match=r'takes ds of Airflow.*\n.*pass it "\{\{ ds \}\}"'):
            of_airflow()
        with pytest.raises(RequestError, match="Neither cluster nor slice"):
            nowhere()
        with pytest.raises(TypeError, match="missing a required argument: 'x'"):
            embed()


# --- @task.jax_train ---------------------------------------------------------------------------------------------


async def test_the_function_is_the_loop_and_its_argument_the_config(place_with):
    with DAG("d", schedule=None):
        operator = loop({"steps": "{{ params.steps }}", "rate": 1e-5}).operator
    assert operator.multiple_outputs
    request, _ = await ask(rendered(operator, steps=9), place_with)
    assert request.arguments["train_loop"].endswith(":loop")
    assert request.arguments["train_loop_config"] == {"steps": "9", "rate": 1e-5}
    assert request.arguments["checkpoint"]["every_steps"] == 7


async def test_a_config_of_another_task_is_checked_once_it_is_there(place_with):
    with DAG("d", schedule=None) as dag:

        @task
        def configure():
            return {"global_batch_size": 10}

        loop(configure())
    operator = dag.get_task("loop").prepare_for_execution()
    assert operator.upstream_task_ids == {"configure"}
    operator.op_args = [{"global_batch_size": 10}]
    place_with(ScriptedBackend([running()]))
    with pytest.raises(AirflowFailException, match="global_batch_size is 10"):
        await operator.aexecute(context(TaskInstance(task_id="loop")))


def test_a_sweep_is_a_mapped_task():
    with DAG("d", schedule=None) as dag:
        loop.expand(config=[{"steps": 1}, {"steps": 2}])
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert again.get_task("loop").operator_name == "@task.jax_train"


def test_what_is_no_train_loop_is_refused():
    @task.jax_train(slice="v6e:4x4")
    def two(config, more):
        return config, more

    with DAG("d", schedule=None):
        with pytest.raises(CodeError, match="takes 2 parameters"):
            two({}, 1)
        with pytest.raises(RequestError, match="The config of loop is a int"):
            loop(3)
        with pytest.raises(BatchSizeError, match="global_batch_size is 100"):
            loop.override(task_id="other")({"global_batch_size": 100})


# --- @task.jax_batch ---------------------------------------------------------------------------------------------


async def test_the_function_predicts_and_is_called_with_the_addresses_of_model_and_input(place_with, tmp_path):
    for name in ("model", "rows"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").touch()
    with DAG("d", schedule=None):
        operator = predict(f"{tmp_path}/model", "{{ params.root }}/rows").operator
    assert operator.multiple_outputs
    request, _ = await ask(rendered(operator, root=str(tmp_path)), place_with)
    asked = request.arguments
    assert asked["predict"].endswith(":predict")
    assert [asked[name] for name in ("model", "input", "output")] == [
        (tmp_path / name).as_uri() for name in ("model", "rows", "scores")
    ]
    assert (asked["batch_size"], asked["columns"], asked["ragged"]) == (64, ["pixels"], "pad")
    (shipped,) = operator.codes()[0].files().values()
    assert "@task" not in shipped.decode()


async def test_without_a_model_it_is_given_none_and_a_model_that_came_to_nothing_is_refused(place_with, tmp_path):
    (tmp_path / "rows").touch()
    with DAG("d", schedule=None):
        bare = predict(None, f"{tmp_path}/rows").operator
        missing = predict.override(task_id="missing")(batch=f"{tmp_path}/rows", model="{{ params.model }}").operator
    request, _ = await ask(rendered(bare, root=str(tmp_path)), place_with)
    assert request.arguments["model"] is None
    missing = rendered(missing, root=str(tmp_path), model="gs")
    missing.op_kwargs["model"] = None
    with pytest.raises(AirflowFailException, match="model is None"):
        await missing.aexecute(context(TaskInstance(task_id="missing")))


def test_it_follows_the_tasks_whose_outputs_it_is_called_with():
    with DAG("d", schedule=None) as dag:
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")

        @task
        def rows(day):
            return day

        trained = loop.override(cluster=cluster, slice=None)({})
        scored = predict.override(cluster=cluster, slice=None)(trained["checkpoint"], rows("a"))
        rows.override(task_id="after")(scored["output"])
        predict.override(task_id="each", cluster=cluster.output, slice=None).partial(model="gs://b/9").expand(
            batch=rows.override(task_id="many").expand(day=["a", "b"])
        )
        cluster.teardown()
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert again.get_task("predict").upstream_task_ids == {"cluster", "loop", "rows"}
    assert again.get_task("after").upstream_task_ids == {"predict"}
    assert again.get_task("each").upstream_task_ids == {"cluster", "many"}
    assert again.get_task("each").operator_name == "@task.jax_batch"
    assert again.get_task("cluster_teardown").upstream_task_ids == {"cluster", "each", "loop", "predict"}


def test_what_predicts_nothing_is_refused():
    @task.jax_batch(slice="v6e:4x4", output="gs://b/o", batch_size=64)
    def one(batch):
        return batch

    with DAG("d", schedule=None):
        with pytest.raises(CodeError, match=r"predicts nothing: it takes 1 parameter\."):
            one("gs://b/i")
        with pytest.raises(TypeError, match="missing a required argument: 'batch'"):
            predict("gs://b/m")
        with pytest.raises(BatchSizeError, match="batch_size is 100"):
            predict.override(task_id="other", batch_size=100)("gs://b/m", "gs://b/i")
        with pytest.raises(TypeError, match="output"):
            task.jax_batch(slice="v6e:4x4", batch_size=64)(predict.function)("gs://b/m", "gs://b/i")
