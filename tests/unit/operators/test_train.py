"""What a training request says of its beginning, and of the author's module."""

from __future__ import annotations

import pytest

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import PathError, RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.policies import CheckpointPolicy
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.operators import JaxTrainerOperator
from airflow_raytpu.operators._arguments import Target
from airflow_raytpu.runtime.commits import Commit, folder, record
from airflow_raytpu.runtime.lineage import warm_start
from airflow_raytpu.storage import imports
from airflow_raytpu.storage.code import Code

TARGET = Target(slice="v6e:4x4")


def trainer(**more):
    return JaxTrainerOperator(**{"task_id": "train", "train_loop": "json:dumps", "slice": "v6e:4x4", **more})


def test_a_warm_start_is_an_address_that_is_there(tmp_path):
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "data").write_text("x")

    assert trainer(warm_start=f"{tmp_path}/9/").build(TARGET)["warm_start"] == (tmp_path / "9").as_uri()
    assert trainer().build(TARGET)["warm_start"] == ""
    with pytest.raises(PathError):
        trainer(warm_start=f"{tmp_path}/8").build(TARGET)


def test_a_warm_start_that_came_to_nothing_is_no_fresh_start():
    operator = trainer(warm_start="{{ nothing }}")
    operator.warm_start = None

    with pytest.raises(RequestError, match="warm_start is None"):
        operator.build(TARGET)


def test_a_warm_start_that_is_no_address_is_refused_when_the_dag_is_parsed():
    with pytest.raises(RequestError, match=r"RT103|RT122"):
        trainer(warm_start="s3://bucket/9")


@pytest.mark.parametrize("earlier", ["before", ""])
def test_the_previous_run_is_handed_on_by_its_id(earlier):
    operator = trainer(warm_start="previous_run")
    operator._earlier = earlier

    arguments = operator.build(TARGET)

    assert (arguments["warm_start"], arguments["warm_start_run"]) == ("", earlier)


def test_the_newest_whole_checkpoint_of_the_previous_run_counts(tmp_path):
    def request(run, **arguments):
        identity = Identity(deployment="d", dag_id="dag", task_id="train", run_id=run, map_index=3)
        return RayRequest(
            identity=identity,
            kind=Kind.TRAIN,
            slice="v6e:4x4",
            storage=f"{tmp_path.as_uri()}/{identity.storage_path()}",
            limits=Deadlines().since(0.0),
            arguments=arguments,
        )

    root = f"{request('run: 1').storage}/checkpoints"
    for step in (5, 10):
        record(Commit(step, folder(root, step), "one", files={"gone": 1} if step == 10 else {}))

    assert warm_start(request("run: 2", warm_start_run="run: 1")) == f"{root}/5"
    assert warm_start(request("run: 2", warm_start_run="run: 0")) == ""
    assert warm_start(request("run: 2", warm_start=f"{root}/5")) == f"{root}/5"
    with pytest.raises(PathError, match="There is no checkpoint at file:///a/9"):
        warm_start(request("run: 2", warm_start="file:///a/9"))


def test_the_policy_goes_whole_to_the_cluster():
    policy = CheckpointPolicy(every_seconds=30, keep=3, best=("loss", "min"))

    assert CheckpointPolicy.from_dict(trainer(checkpoint=policy).build(TARGET)["checkpoint"]) == policy


@pytest.mark.parametrize(
    "wrong", [{"best": "loss"}, {"best": ("loss", "least")}, {"every_seconds": 0}, {"longest_save": -1}, {"keep": 1.5}]
)
def test_a_policy_that_cannot_be_is_refused(wrong):
    with pytest.raises(RequestError, match=next(iter(wrong))):
        CheckpointPolicy(**wrong)


def test_on_nan_is_one_of_two_words():
    with pytest.raises(RequestError, match="on_nan is 'hope'"):
        trainer(on_nan="hope")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("import os\nimport jax.numpy as jnp\n", "wares/train.py:2"),
        ("try:\n    from jax import jit\nexcept ImportError:\n    jit = None\n", "wares/train.py:2"),
        ("import jaxtyping\nfrom . import jax\ndef loop():\n    import jax\n", ""),
    ],
)
def test_where_a_module_imports_jax_outside_of_functions(tmp_path, text, where):
    (tmp_path / "wares").mkdir()
    (tmp_path / "wares" / "train.py").write_text(text)

    assert imports.at_top(Code("wares.train:loop", ((tmp_path, "wares"),)), "jax") == where
