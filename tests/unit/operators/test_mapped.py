"""Mapped tasks are told when the DAG is parsed what cannot work, as others are, and nothing that may."""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup, task
from airflow.serialization.serialized_objects import DagSerialization

from airflow_raytpu import Deadlines, RetryBudget, TpuSlice
from airflow_raytpu.model.errors import (
    BatchSizeError,
    CodeError,
    DeadlineError,
    PathError,
    RequestError,
    SliceShapeError,
)
from airflow_raytpu.operators import (
    IterJaxBatchInferenceOperator,
    JaxTrainerOperator,
    RayServeDeployOperator,
    RayTpuClusterOperator,
    RayTpuJobOperator,
)

FOUND = "json:dumps"
MINIMAL: dict[type[Any], dict[str, Any]] = {
    JaxTrainerOperator: {"train_loop": FOUND, "slice": "v6e:4x4"},
    IterJaxBatchInferenceOperator: {
        "predict": FOUND,
        "slice": "v6e:4x4",
        "input": "/in",
        "output": "/out",
        "batch_size": 32,
    },
    RayTpuJobOperator: {"run": FOUND, "slice": "v6e:4x4"},
    RayServeDeployOperator: {"app": FOUND, "slice": "v6e:2x2", "name": "digits"},
    RayTpuClusterOperator: {"slice": "v6e:4x4*2", "min_idle_slices": 1},
}
SPARE = {
    JaxTrainerOperator: "datasets",
    IterJaxBatchInferenceOperator: "columns",
    RayTpuJobOperator: "env",
    RayServeDeployOperator: "model",
    RayTpuClusterOperator: "storage_path",
}
"""An argument of each to map, about which nothing is asked here."""


def partial(operator, task_id="mapped", **more):
    """Everything that *operator* needs; ``None`` leaves an argument out."""
    stated = {**MINIMAL[operator], **more}
    return operator.partial(task_id=task_id, **{name: value for name, value in stated.items() if value is not None})


@pytest.fixture
def dag():
    with DAG("sweep", schedule=None) as dag:
        yield dag


@pytest.fixture
def values(dag):
    """What only a run knows."""

    @task
    def values():
        return [1, 2]

    return values()


@task.jax_train(slice="v6e:4x4")
def loop(config):
    print(config["steps"])


@task.jax_batch(slice="v6e:4x4", output="gs://b/o", batch_size=64)
def predict(model, batch):
    return model(batch)


@task.ray_tpu(slice="v6e:4x4")
def work(x, *rest, y=2, **more):
    return [x, rest, y, more]


# --- what partial() states -----------------------------------------------------------------------------------------

WRONG = [
    (JaxTrainerOperator, {"slice": "v6e:4x5"}, SliceShapeError, "no topology 4x5"),
    (JaxTrainerOperator, {"slice": 16}, SliceShapeError, "slice is a int"),
    (JaxTrainerOperator, {"slice": None}, RequestError, "Neither cluster nor slice"),
    (JaxTrainerOperator, {"train_loop": "json:dmups"}, CodeError, "defines no dmups"),
    (JaxTrainerOperator, {"resume": "sometimes"}, RequestError, "resume is 'sometimes'"),
    (JaxTrainerOperator, {"on_nan": "roll_back"}, RequestError, "RetryBudget.failures, which is 0"),
    (JaxTrainerOperator, {"elastic": (2, 1)}, RequestError, "no range"),
    (JaxTrainerOperator, {"ttl": timedelta(0)}, DeadlineError, "ttl is 0 s"),
    (JaxTrainerOperator, {"train_loop_config": {"global_batch_size": 100}}, BatchSizeError, "is 100"),
    (JaxTrainerOperator, {"train_loop_config": {"a": object()}}, RequestError, "is a object"),
    (JaxTrainerOperator, {"storage_path": "s3://b/x"}, PathError, "s3://b/x"),
    (JaxTrainerOperator, {"kuberay": {"provisioning": "never"}}, RequestError, "provisioning"),
    (IterJaxBatchInferenceOperator, {"ragged": "keep"}, RequestError, "ragged is 'keep'"),
    (IterJaxBatchInferenceOperator, {"batch_size": 33}, BatchSizeError, "batch_size is 33"),
    (IterJaxBatchInferenceOperator, {"input": "s3://b/x"}, PathError, "s3://b/x"),
    (RayTpuJobOperator, {"run": "tools/nothing.py"}, CodeError, "no such file"),
    (RayTpuJobOperator, {"per_host": True, "reserve": False}, RequestError, "reserves none"),
    (RayServeDeployOperator, {"route_prefix": "digits"}, RequestError, "route_prefix is 'digits'"),
    (RayServeDeployOperator, {"name": None}, RequestError, "no name is given"),
    (RayTpuClusterOperator, {"min_idle_slices": 3}, RequestError, "min_idle_slices is 3"),
]


@pytest.mark.parametrize(("operator", "stated", "error", "message"), WRONG)
def test_what_partial_states_is_refused_whatever_is_mapped(operator, stated, error, message, values):
    with pytest.raises(error, match=message) as caught:
        partial(operator, **stated).expand(**{SPARE[operator]: values})
    assert "expand" not in str(caught.value), "it is not the mapped values' fault"
    with pytest.raises(error, match=message) as caught:
        partial(operator, "again", **stated).expand(**{SPARE[operator]: ["/a", "/b"]})
    assert "expand" not in str(caught.value)


@pytest.mark.parametrize(
    ("operator", "stated", "error", "message"),
    # What is left out here may come with the run.
    [case for case in WRONG if None not in case[1].values() and "roll_back" not in case[1].values()],
)
def test_it_is_refused_too_where_any_other_argument_may_come_with_the_run(operator, stated, error, message, values):
    with pytest.raises(error, match=message):
        partial(operator, **stated).expand_kwargs(values)


@pytest.mark.parametrize(
    ("decorated", "stated", "mapped", "error", "message"),
    [
        (loop, {"slice": "v6e:4x5"}, "config", SliceShapeError, "no topology 4x5"),
        (loop, {"slice": None}, "config", RequestError, "Neither cluster nor slice"),
        (loop, {"on_nan": "go on"}, "config", RequestError, "on_nan is 'go on'"),
        (predict, {"batch_size": 100}, "batch", BatchSizeError, "batch_size is 100"),
        (predict, {"ragged": "keep"}, "batch", RequestError, "ragged is 'keep'"),
        (work, {"slice": "v6e:4x5"}, "x", SliceShapeError, "no topology 4x5"),
        (work, {"modules": ["jsn"]}, "x", CodeError, "no module jsn"),
    ],
)
def test_what_a_decorator_states_is_refused_where_the_function_is_mapped(
    decorated, stated, mapped, error, message, values
):
    asked = decorated.override(**stated)
    if decorated is predict:
        asked = asked.partial(model="gs://b/m")
    with pytest.raises(error, match=message):
        asked.expand(**{mapped: values})
    if None not in stated.values():
        with pytest.raises(error, match=message):
            asked.expand_kwargs(values)


def test_what_a_function_is_given_by_partial_is_refused(values):
    with pytest.raises(PathError, match="s3://b/m"):
        predict.partial(model="s3://b/m").expand(batch=values)


# --- what expand() states ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "name", "elements", "error", "message"),
    [
        (JaxTrainerOperator, "slice", ["v6e:4x4", "v6e:4x5"], SliceShapeError, "no topology 4x5"),
        (JaxTrainerOperator, "train_loop", [FOUND, "json:dmups"], CodeError, "defines no dmups"),
        (JaxTrainerOperator, "train_loop_config", [{}, {"global_batch_size": 100}], BatchSizeError, "is 100"),
        (JaxTrainerOperator, "datasets", [{}, {"train": "s3://b"}], PathError, "s3://b"),
        (JaxTrainerOperator, "elastic", [(1, 2), (2, 1)], RequestError, "no range"),
        (IterJaxBatchInferenceOperator, "batch_size", [32, 33], BatchSizeError, "batch_size is 33"),
        (IterJaxBatchInferenceOperator, "output", ["/o", "s3://b"], PathError, "s3://b"),
        (RayTpuJobOperator, "op_args", [[], "--steps 1"], RequestError, "op_args is one text"),
        (RayTpuJobOperator, "run", [FOUND, "json.toool"], CodeError, r"Nearest: json\.tool"),
        (RayServeDeployOperator, "route_prefix", ["/", "digits"], RequestError, "route_prefix is 'digits'"),
        (RayTpuClusterOperator, "slice", ["v6e:4x4*2", "v6e:4x5"], SliceShapeError, "no topology 4x5"),
    ],
)
def test_an_element_is_refused_by_its_number(operator, name, elements, error, message, dag):
    where = rf"^{name}\[1\] of expand\(\): [\s\S]*{message}"
    with pytest.raises(error, match=where):
        partial(operator, **{name: None}).expand(**{name: elements})
    with pytest.raises(error, match=rf"^element 1 of expand_kwargs\(\): [\s\S]*{message}"):
        partial(operator, "again", **{name: None}).expand_kwargs([{name: each} for each in elements])


def test_an_element_is_held_against_what_partial_states_and_the_error_is_the_same(dag):
    with pytest.raises(BatchSizeError) as plain:
        JaxTrainerOperator(
            task_id="plain", train_loop=FOUND, slice="v6e:4x4", train_loop_config={"global_batch_size": 24}
        )
    with pytest.raises(BatchSizeError) as mapped:
        partial(JaxTrainerOperator).expand(
            train_loop_config=[{"global_batch_size": 16}, {"global_batch_size": 32}, {"global_batch_size": 24}]
        )
    assert str(mapped.value) == f"train_loop_config[2] of expand(): {plain.value}"
    with pytest.raises(RequestError, match=r"^op_kwargs\[0\] of expand\(\): A module takes no op_kwargs"):
        partial(RayTpuJobOperator, "job", run="json.tool").expand(op_kwargs=[{"indent": 2}])


def test_an_element_of_a_decorated_function_is_refused_by_its_number(dag):
    with pytest.raises(BatchSizeError, match=r"^config\[1\] of expand\(\): global_batch_size is 24"):
        loop.expand(config=[{"global_batch_size": 16}, {"global_batch_size": 24}])
    with pytest.raises(RequestError, match=r"^config\[0\] of expand\(\): The config of loop\w* is a int"):
        loop.expand(config=[3])
    with pytest.raises(PathError, match=r"^element 1 of expand_kwargs\(\): [\s\S]*s3://b"):
        predict.partial(model="/m").expand_kwargs([{"batch": "/a"}, {"batch": "s3://b"}])
    with pytest.raises(TypeError, match="missing a required argument: 'model'"):
        predict.expand(batch=["/a"])


def test_an_element_is_refused_beside_one_that_the_run_knows(dag, values):
    with pytest.raises(SliceShapeError, match=r"^slice\[1\] of expand\(\)"):
        partial(JaxTrainerOperator, slice=None).expand(slice=[values, "v6e:4x5"])
    with pytest.raises(SliceShapeError, match=r"^element 1 of expand_kwargs\(\)"):
        partial(JaxTrainerOperator, "again", slice=None).expand_kwargs([values, {"slice": "v6e:4x5"}])


def test_the_cluster_of_a_mapped_task_says_what_fits(dag):
    cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
    with pytest.raises(SliceShapeError, match=r"asks for v6e:8x8 on a cluster of v6e:4x4"):
        partial(JaxTrainerOperator, cluster=cluster, slice="v6e:8x8").expand(train_loop_config=[{}])
    with pytest.raises(BatchSizeError, match=r"^element 0 of expand_kwargs\(\): global_batch_size is 24"):
        partial(JaxTrainerOperator, "again", slice=None).expand_kwargs(
            [{"cluster": cluster.output, "train_loop_config": {"global_batch_size": 24}}]
        )


# --- what may work -------------------------------------------------------------------------------------------------

HARD: dict[type[Any], list[dict[str, Any]]] = {
    JaxTrainerOperator: [
        {},
        {"train_loop_config": {"global_batch_size": 32}},
        {"on_nan": "roll_back", "retry_budget": RetryBudget(failures=1)},
        {"slice": "v6e:2x2/4x4", "cluster": "shared"},
        {"slice": None, "cluster": "shared"},
        {"elastic": (1, 2), "slice": "v6e:4x4"},
        {"slice": "v6e:4x4*2", "train_loop_config": {"global_batch_size": 32}},
        {"argv": ["--steps", "1"], "deadlines": Deadlines(total=timedelta(hours=9))},
    ],
    IterJaxBatchInferenceOperator: [{}, {"slice": None, "cluster": "shared"}, {"slice": "v6e:2x2/4x4", "cluster": "s"}],
    RayTpuJobOperator: [{}, {"op_kwargs": {"obj": 1}}, {"per_host": True}, {"reserve": False}, {"op_args": [1]}],
    RayServeDeployOperator: [{}, {"name": None, "cluster": "shared"}, {"name": None, "slice": None, "cluster": "s"}],
    RayTpuClusterOperator: [{}, {"kuberay": {"autoscaling": True, "min_slices": 0}}],
}
ONE_BY_ONE = [
    pytest.param(operator, stated, name, id=f"{operator.__name__}-{'-'.join(stated) or 'minimal'}-{name}")
    for operator, cases in HARD.items()
    for stated in cases
    for name in [*inspect.signature(operator).parameters, "kuberay", "storage_path", "conn_id", "deadlines", "ttl"]
    if name != "kwargs"
]


@pytest.mark.parametrize(("operator", "stated", "name"), ONE_BY_ONE)
def test_whatever_is_known_by_the_run_alone_is_not_held_against_the_rest(operator, stated, name, values):
    left = {each: value for each, value in {**MINIMAL[operator], **stated}.items() if each != name}
    if name == "train_loop_config":
        left.pop("argv", None)
    if name == "argv":
        left.pop("train_loop_config", None)
    stated_ones = {each: value for each, value in left.items() if value is not None}
    operator.partial(task_id="mapped", **stated_ones).expand(**{name: values})
    operator.partial(task_id="again", **stated_ones).expand_kwargs([{name: values}, values])
    operator.partial(task_id="any", **stated_ones).expand_kwargs(values)


@pytest.mark.parametrize("operator", MINIMAL)
def test_all_arguments_may_come_with_the_run(operator, values):
    operator.partial(task_id="mapped").expand_kwargs(values)
    operator.partial(task_id="each").expand(**dict.fromkeys(MINIMAL[operator], values))


def test_what_is_replaced_by_the_run_is_not_looked_at(values):
    partial(JaxTrainerOperator, slice="v6e:4x5").expand_kwargs(values, strict=False)
    stated = [{"slice": "v6e:4x4"}, {"slice": "v6e:8x8"}]
    partial(JaxTrainerOperator, "again", slice="v6e:4x5").expand_kwargs(stated, strict=False)


def test_a_list_that_came_out_empty_is_no_error(dag):
    partial(JaxTrainerOperator, slice=None).expand_kwargs([])
    loop.expand_kwargs([])


def test_templates_are_looked_at_when_they_are_rendered(dag):
    partial(JaxTrainerOperator, slice="{{ params.slice }}", storage_path="{{ var.value.root }}").expand(
        train_loop_config=[{"global_batch_size": "{{ params.batch }}"}, {"global_batch_size": 100}]
    )
    partial(IterJaxBatchInferenceOperator, "score", slice=None, batch_size=None).expand(
        slice=["{{ params.slice }}", TpuSlice("v6e", "4x4")], batch_size=[64, "{{ params.batch }}"]
    )
    work.override(slice="{{ params.slice }}").expand(x=["{{ ds }}"])


def test_a_part_of_a_cluster_whose_slice_only_the_run_knows(dag, values):
    cluster = RayTpuClusterOperator(task_id="cluster", slice="{{ params.slice }}")
    for name, stated in {"task": cluster, "xcom": values, "template": "{{ params.cluster }}"}.items():
        JaxTrainerOperator(task_id=name, train_loop=FOUND, cluster=stated, slice="v6e:2x2/4x4")
    partial(JaxTrainerOperator, cluster=cluster, slice="v6e:2x2/4x4").expand(train_loop_config=[{}])
    with pytest.raises(SliceShapeError, match="no cluster is made of parts"):
        JaxTrainerOperator(task_id="alone", train_loop=FOUND, slice="v6e:2x2/4x4")


@pytest.mark.parametrize("decorated", [loop, predict, work], ids=["jax_train", "jax_batch", "ray_tpu"])
def test_a_decorated_function_may_be_given_everything_by_the_run(decorated, values):
    names = [name for name in inspect.signature(decorated.function).parameters if name not in ("rest", "more")]
    decorated.expand(**dict.fromkeys(names, values))
    decorated.override(task_id="any").expand_kwargs(values)
    decorated.override(task_id="some").partial(**{names[0]: "gs://b/m" if decorated is predict else {}}).expand_kwargs(
        values
    )


def test_one_who_maps_a_dict_is_not_refused(dag):
    work.expand(x={"a": 1, "b": 2})


class Sized(JaxTrainerOperator):
    def __init__(self, *, chips: int, **kwargs: Any) -> None:
        super().__init__(slice=f"v6e-{int(chips)}", **kwargs)


class Renamed(JaxTrainerOperator):
    pass


def test_an_authors_own_constructor_is_asked_nothing_before_the_run(dag, values):
    Sized.partial(task_id="mapped", train_loop=FOUND).expand(chips=values)
    Sized.partial(task_id="any", train_loop=FOUND).expand_kwargs(values)
    with pytest.raises(SliceShapeError, match="no topology 4x5"):
        Renamed.partial(task_id="renamed", train_loop=FOUND, slice="v6e:4x5").expand(train_loop_config=values)


def test_a_group_and_default_arguments_are_those_of_the_copy():
    with DAG("sweep", schedule=None, default_args={"slice": "v6e:4x4", "storage_path": "/x"}) as dag, TaskGroup("of"):
        partial(JaxTrainerOperator, slice=None).expand(train_loop_config=[{"global_batch_size": 16}])
        loop.expand(config=[{"global_batch_size": 16}])
        with pytest.raises(BatchSizeError, match="is 24"):
            partial(JaxTrainerOperator, "again", slice=None).expand(train_loop_config=[{"global_batch_size": 24}])
    assert {"of.mapped", "of.loop"} < set(dag.task_ids)


# --- what it leaves behind -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["cluster", "teardown"])
def test_nothing_of_the_check_is_in_the_dag(of):
    """Neither as a user of its cluster nor as a task of a ``with`` block, which Airflow's own mapped tasks are not."""
    with DAG("sweep", schedule=None) as dag:
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
        given = partial(RayTpuJobOperator, "given").expand(op_args=[[1]])
        with cluster if of == "cluster" else cluster.teardown():
            partial(JaxTrainerOperator, slice=None, cluster=cluster).expand(train_loop_config=[{"a": 1}, {"a": 2}])
            loop.override(cluster=cluster, slice=None).expand(config=given.output)
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert not cluster._users
    assert again.get_task("mapped").upstream_task_ids == {"cluster"}
    assert again.get_task("loop").upstream_task_ids == {"cluster", "given"}
    assert not again.get_task("mapped").downstream_task_ids
    if of == "teardown":
        assert again.get_task("cluster_teardown").upstream_task_ids == {"cluster"}


def test_the_authors_file_is_read_as_often_for_a_hundred_elements_as_for_one(dag, monkeypatch):
    read: list[Path] = []
    read_bytes = Path.read_bytes

    def count(file: Path) -> bytes:
        read.append(file)
        return read_bytes(file)

    monkeypatch.setattr(Path, "read_bytes", count)
    partial(JaxTrainerOperator).expand(train_loop_config=[{"steps": 1}])
    once = len(read)
    partial(JaxTrainerOperator, "many").expand(train_loop_config=[{"steps": steps} for steps in range(100)])
    assert 0 < once == len(read) - once
