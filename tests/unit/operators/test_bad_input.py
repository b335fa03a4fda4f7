"""What people and machines type into a DAG: ids at their limit, numbers, and far too much of it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from airflow_raytpu.backends.kuberay.manifest import check, manifest
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.request import ARGUMENTS_LIMIT, RayRequest
from airflow_raytpu.operators import JaxTrainerOperator
from airflow_raytpu.storage import objects
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, running

LONGEST = 250
"""Characters that Airflow takes for an id (3.3.2)."""

IDS = ["数字" * 125, "Ünïcödé." * 31 + "éa", "-" * LONGEST, "." * LONGEST, "A" * LONGEST]
RUN_ID = "manual__2026-11-29T10:00:00+00:00_é/../%2F"
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


async def submitted(
    operator: JaxTrainerOperator, backend: ScriptedBackend, ti: TaskInstance, **more: Any
) -> RayRequest:
    made = {**context(ti), **more}
    operator.render_template_fields(made)
    with pytest.raises(TaskDeferred):
        await operator.aexecute(made)
    return backend.requests[-1]


@pytest.mark.parametrize("dag_id", IDS)
async def test_ids_of_250_characters_of_any_script_run_and_fit_into_kubernetes(dag_id: str, place_with) -> None:
    backend = ScriptedBackend([running(at=time.time())])
    place_with(backend)
    with DAG(dag_id, schedule=None) as dag:
        operator = JaxTrainerOperator(task_id=dag_id, train_loop="json:dumps", slice="v6e:4x4")
    DagSerialization.from_dict(DagSerialization.to_dict(dag))
    request = await submitted(operator, backend, TaskInstance(dag_id=dag_id, task_id=dag_id, run_id=RUN_ID))
    assert RayRequest.from_dict(json.loads(json.dumps(request.to_dict()))) == request
    assert objects.read_json(request.outbox("request"))["identity"]["dag_id"] == dag_id
    body = manifest(request, KubeRayOptions(image="ray:1"), time.time())
    check(body)
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,33}[a-z0-9])?", body["metadata"]["name"])
    assert all(LABEL.fullmatch(value) for value in body["metadata"]["labels"].values())
    assert f"|{dag_id}|{dag_id}|{RUN_ID}|" in body["metadata"]["annotations"]["airflow-raytpu/owner"]


async def test_runs_that_differ_in_a_plus_or_a_colon_share_nothing(place_with) -> None:
    backend = ScriptedBackend([running(at=time.time())])
    place_with(backend)
    requests = []
    for run_id in ("manual__10:00+00:00", "manual__10:00-00:00", "manual__10_00+00_00", "manual__10:00 00:00"):
        operator = JaxTrainerOperator(task_id="train", train_loop="json:dumps", slice="v6e:4x4")
        requests.append(await submitted(operator, backend, TaskInstance(run_id=run_id)))
    assert len({request.name for request in requests}) == 4
    assert len({request.storage for request in requests}) == 4


async def test_a_number_stays_a_number_and_text_stays_text_from_conf_to_request(place_with) -> None:
    """``1e-5`` is text to some readers of YAML, and ``yes``, ``012`` and ``null`` are something else than text."""
    backend = ScriptedBackend([running(at=time.time())])
    place_with(backend)
    with DAG(
        "digits",
        schedule=None,
        render_template_as_native_obj=True,
        params={
            "lr": Param(0.1, type="number"),
            "steps": Param(1, type="integer"),
            "fast": Param(default=False, type="boolean"),
        },
    ) as dag:
        operator = JaxTrainerOperator(
            task_id="train",
            train_loop="json:dumps",
            slice="v6e:4x4",
            train_loop_config={
                "lr": "{{ params.lr }}",
                "steps": "{{ params.steps }}",
                "fast": "{{ params.fast }}",
                "literal": 1e-5,
                "words": ["1e-5x", "yes", "no", "12h", "~"],
                "deep": {"betas": [0.9, 1e-8]},
            },
        )
    params = dag.params
    params.update(json.loads('{"lr": 1e-5, "steps": 1000000, "fast": true}'))
    request = await submitted(operator, backend, TaskInstance(), params=params.validate())
    config = json.loads(json.dumps(request.to_dict()))["arguments"]["train_loop_config"]
    assert config == {
        "lr": 1e-5,
        "steps": 1_000_000,
        "fast": True,
        "literal": 1e-5,
        "words": ["1e-5x", "yes", "no", "12h", "~"],
        "deep": {"betas": [0.9, 1e-8]},
    }
    assert [type(config[name]) for name in ("lr", "steps", "fast")] == [float, int, bool]


async def test_ten_megabytes_of_conf_are_refused_with_the_limit_before_anything_is_made(
    place_with, tmp_path: Path
) -> None:
    backend = ScriptedBackend([running(at=time.time())])
    place_with(backend)
    with DAG("digits", schedule=None, render_template_as_native_obj=True):
        operator = JaxTrainerOperator(
            task_id="train", train_loop="json:dumps", slice="v6e:4x4", train_loop_config={"all": "{{ dag_run.conf }}"}
        )
    made = context(TaskInstance())
    made["dag_run"].conf = {"blob": ["x" * 1000] * 10_000}
    operator.render_template_fields(made)
    with pytest.raises(
        AirflowFailException, match=rf"train take 10,\d{{3}},\d{{3}} bytes of JSON; {ARGUMENTS_LIMIT:,} fit"
    ):
        await operator.aexecute(made)
    assert backend.calls == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"x", object()])
async def test_what_json_cannot_hold_is_refused_before_anything_is_made(value: Any, place_with, tmp_path: Path) -> None:
    backend = ScriptedBackend([running(at=time.time())])
    place_with(backend)
    with pytest.raises((AirflowFailException, RequestError), match=r"JSON|train_loop_config"):
        await JaxTrainerOperator(
            task_id="train", train_loop="json:dumps", slice="v6e:4x4", train_loop_config={"value": value}
        ).aexecute(context(TaskInstance()))
    assert backend.calls == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
