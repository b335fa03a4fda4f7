"""What a training request says of its beginning, and of the author's module."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import PathError, RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.policies import CheckpointPolicy, Profile, RetryBudget
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.operators import JaxTrainerOperator
from airflow_raytpu.operators._arguments import Target
from airflow_raytpu.runtime.commits import Commit, folder, record
from airflow_raytpu.runtime.lineage import warm_start
from airflow_raytpu.storage import imports
from airflow_raytpu.storage.code import Code
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, succeeded

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


@dataclass
class Past:
    """A task instance that knows of earlier runs: the one before it by date, and what the one before it returned."""

    run_id: str = ""
    returned: dict[str, Any] | None = None
    map_index: int | None = None

    def get_previous_ti(self, state, map_index):
        assert (state, map_index) == ("success", self.map_index if self.map_index is not None else -1)
        return self if self.run_id else None

    def xcom_pull(self, *, include_prior_dates, map_indexes):
        assert (include_prior_dates, map_indexes) == (True, self.map_index if self.map_index is not None else -1)
        return self.returned


@pytest.mark.parametrize(
    ("past", "date", "asked"),
    [
        # Of a run with a date, Airflow knows the one before; of one without, it would take any.
        (Past("before", {"checkpoint": "gs://b/d/9"}), "2026-11-30", {"warm_start_run": "before"}),
        (Past("before", {"checkpoint": "gs://b/d/9"}), None, {"warm_start_folder": "gs://b/d"}),
        (Past(map_index=3, returned={"checkpoint": "gs://b/d/9"}), None, {"warm_start_folder": "gs://b/d"}),
        (Past("before", map_index=3), "2026-11-30", {"warm_start_run": "before"}),
        (Past("before", {"checkpoint": None}), None, {}),
        (Past("any"), None, {}),
        (Past(), "2026-11-30", {}),
    ],
)
async def test_the_previous_run_is_the_one_before_by_date_or_by_time(past, date, asked, place_with):
    backend = ScriptedBackend([succeeded({"step": 1})])
    place_with(backend)
    operator = trainer(warm_start="previous_run", deferrable=False)
    ti = TaskInstance()
    ti.get_previous_ti, ti.xcom_pull, ti.map_index = past.get_previous_ti, past.xcom_pull, past.map_index
    seen = context(ti)
    seen["dag_run"].logical_date = date

    await operator.aexecute(seen)

    (request,) = backend.requests
    given = {name: each for name, each in request.arguments.items() if name.startswith("warm_start")}
    assert given == {"warm_start": "", **asked}


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
    assert warm_start(request("run: 2", warm_start_folder=root)) == f"{root}/5"
    assert warm_start(request("run: 2", warm_start_folder=f"{root}/none")) == ""
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


def test_on_nan_is_one_of_three_words():
    with pytest.raises(RequestError, match=r"on_nan is 'hope'\.\n  Use one of stop, roll_back, ignore"):
        trainer(on_nan="hope")


def test_to_roll_back_needs_a_failure_to_spend():
    with pytest.raises(RequestError, match=r"RetryBudget.failures, which is 0"):
        trainer(on_nan="roll_back")
    assert trainer(on_nan="roll_back", retry_budget=RetryBudget(failures=1)).build(TARGET)["on_nan"] == "roll_back"
    templated = trainer(on_nan="{{ params.on_nan }}")
    templated.on_nan = "roll_back"
    with pytest.raises(RequestError, match=r"RetryBudget.failures, which is 0"):
        templated.refuse_early()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"model": object()}, r"train_loop_config\['model'\] is a object"),
        ({"a": {"b": [1, {"lr": print}]}}, r"train_loop_config\['a'\]\['b'\]\[1\]\['lr'\] is a builtin_function"),
        ({"rate": float("nan")}, r"train_loop_config\['rate'\] is nan"),
        ({"when": timedelta(1)}, r"train_loop_config\['when'\] is a timedelta"),
        ({"a": {(1, 2): 3}}, r"train_loop_config\['a'\] has the key \(1, 2\), a tuple"),
    ],
)
def test_a_config_that_is_no_json_is_refused_by_its_path_when_the_dag_is_parsed(config, text):
    with pytest.raises(RequestError, match=rf"^{text}.*\n  Pass plain numbers"):
        trainer(train_loop_config=config)


def test_what_json_holds_and_what_airflow_resolves_is_no_error():
    with DAG("d", schedule=None):
        before = trainer(task_id="before")
        config = {"a": [1, (2.5, None, True)], 3: "{{ ds }}", "there": before.output, "deep": {"x": before.output["y"]}}
        operator = trainer(train_loop_config=config)
    operator.train_loop_config["there"] = object()
    with pytest.raises(RequestError, match="there"):
        operator.refuse_early()


def test_what_to_trace_goes_to_the_cluster():
    profile = Profile(start_step=20, steps=3)
    assert Profile.from_dict(trainer(profiler=profile).build(TARGET)["profiler"]) == profile
    assert trainer().build(TARGET)["profiler"] is None


@pytest.mark.parametrize("wrong", [{"start_step": -1}, {"steps": 0}, {"steps": 1.5}, {"start_step": True}])
def test_a_profile_that_cannot_be_is_refused(wrong):
    with pytest.raises(RequestError, match=f"Profile.{next(iter(wrong))}="):
        Profile(**wrong)


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
