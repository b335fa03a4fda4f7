"""Each argument of each operator: it shows in what is asked for, and is the same whoever watches."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_raytpu import CheckpointPolicy, Deadlines, Profile, RetryBudget
from airflow_raytpu.operators import (
    IterJaxBatchInferenceOperator,
    JaxTrainerOperator,
    RayTpuClusterOperator,
    RayTpuJobOperator,
)
from airflow_raytpu.operators._lifecycle import RequestOperator
from airflow_raytpu.triggers.watch import WatchTrigger
from tests.doubles.airflow_side import Place, TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, ready, running, succeeded, tpu_slice

NEEDED: dict[type[RequestOperator], Callable[[Path], dict[str, Any]]] = {
    JaxTrainerOperator: lambda _: {"train_loop": "json:dumps", "slice": "v6e:4x4"},
    RayTpuJobOperator: lambda _: {"run": "json:dumps", "slice": "v6e:4x4"},
    RayTpuClusterOperator: lambda _: {"slice": "v6e:4x4*2"},
    IterJaxBatchInferenceOperator: lambda here: {
        "predict": "json:dumps",
        "slice": "v6e:4x4",
        "input": str(here / "in"),
        "output": str(here / "out"),
        "batch_size": 32,
    },
}
"""What each operator cannot do without."""

OTHER: dict[str, Callable[[Path], Any]] = {
    "train_loop": lambda _: "json:loads",
    "train_loop_config": lambda _: {"steps": 3},
    "datasets": lambda here: {"train": str(here / "in")},
    "checkpoint": lambda _: CheckpointPolicy(every_steps=7),
    "resume": lambda _: "never",
    "warm_start": lambda here: str(here / "in"),
    "on_nan": lambda _: "ignore",
    "elastic": lambda _: (1, 2),
    "profiler": lambda _: Profile(start_step=3),
    "argv": lambda _: ["steps=3"],
    "run": lambda _: "json:loads",
    "op_args": lambda _: [1],
    "op_kwargs": lambda _: {"indent": 1},
    "per_host": lambda _: True,
    "reserve": lambda _: False,
    "modules": lambda _: ["wares"],
    "env": lambda _: {"A": "1"},
    "name": lambda _: "shared",
    "min_idle_slices": lambda _: 1,
    "predict": lambda _: "json:loads",
    "load": lambda _: "json:loads",
    "model": lambda here: str(here / "in"),
    "input": lambda here: str(here / "more"),
    "output": lambda here: str(here / "elsewhere"),
    "batch_size": lambda _: 64,
    "ragged": lambda _: "drop",
    "columns": lambda _: ["x"],
    "cluster": lambda _: {"cluster": "dg-1", "slice": "v6e:4x4"},
    "slice": lambda _: "v6e:4x8",
    "retry_budget": lambda _: RetryBudget(failures=7, evictions=9),
    "storage_path": lambda here: str(here / "storage of its own"),
    "deadlines": lambda _: Deadlines(total=timedelta(hours=3)),
    "ttl": lambda _: timedelta(minutes=9),
    "kuberay": lambda _: {"provisioning": "spot"},
}
"""Another value of each argument than the one of :data:`NEEDED`, or its default."""

ABOUT_THE_TASK = {"self", "kwargs", "conn_id", "deferrable", "multiple_outputs"}
"""Arguments that say where it is asked for and how Airflow waits; the tests of hook and lifecycle have them."""


def arguments_of(kind: type[RequestOperator]) -> list[str]:
    names = {name for each in (kind, RequestOperator) for name in inspect.signature(each.__init__).parameters}
    return sorted(names - ABOUT_THE_TASK)


CASES = [pytest.param(kind, name, id=f"{kind.__name__}-{name}") for kind in NEEDED for name in arguments_of(kind)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0")
    monkeypatch.setattr(Place, "options_of", lambda self, stated: dict(stated))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "wares.py").touch()
    for name in ("in", "more"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.parquet").touch()
    return tmp_path


async def asked_for(kind: type[RequestOperator], stated: dict[str, Any], run_id: str, place_with: Any) -> Any:
    """What is submitted, and what it waits for, without what differs from run to run."""
    is_cluster = kind is RayTpuClusterOperator
    backend = ScriptedBackend(
        [running(at=time.time()), ready() if is_cluster else succeeded({"step": 1})],
        pictures=[[tpu_slice(cluster="any")]],
    )
    place = place_with(backend)
    ti = TaskInstance(run_id=run_id)
    try:
        await kind(task_id="train", **stated).aexecute(context(ti))
    except TaskDeferred as deferred:
        trigger = WatchTrigger(**json.loads(json.dumps(deferred.trigger.serialize()[1])))
        assert len([event async for event in trigger.run()]) == 1
    first, *later = [request.to_dict() for request in backend.requests]
    assert all(request == first for request in later), "whoever goes on asks for the same"
    own = ("identity", "name", "storage", "limits")
    root = first["storage"].removesuffix(f"/digits/train/{run_id}")
    return {
        **{name: value for name, value in first.items() if name not in own},
        "is shared": first["identity"]["run_id"] == "",
        "root": "the place's" if root == place.storage else root,
        "waits": [first["limits"][f"{name}_s"] for name in ("slice_wait", "start", "stall", "total")],
    }


@pytest.mark.parametrize(("kind", "name"), CASES)
async def test_it_shows_in_what_is_asked_for_and_is_the_same_deferred_or_not(
    kind: type[RequestOperator], name: str, here: Path, place_with
) -> None:
    needed = NEEDED[kind](here)
    stated = {**needed, name: OTHER[name](here)}
    if name == "cluster":
        del stated["slice"]
    modes = [
        await asked_for(kind, {**stated, "deferrable": deferrable}, f"run-{deferrable}", place_with)
        for deferrable in (True, False)
    ]
    assert modes[0] == modes[1]
    assert modes[0] != await asked_for(kind, needed, "run-plain", place_with)


def test_no_other_value_is_kept_that_no_operator_takes() -> None:
    assert set(OTHER) == {name for kind in NEEDED for name in arguments_of(kind)}
