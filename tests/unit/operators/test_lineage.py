"""What a task tells OpenLineage of what it read and wrote."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_raytpu.model.request import Kind
from airflow_raytpu.operators import JaxTrainerOperator
from airflow_raytpu.operators._lineage import dataset, reads, writes
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, succeeded

TRAIN = {"datasets": {"train": "gs://b/in", "test": {"uri": "file:///d/te%20st", "ragged": "pad"}}}
INFERENCE = {"input": "gs://b/in", "model": "gs://b/runs/9"}


@pytest.mark.parametrize(
    ("kind", "arguments", "value", "read", "written"),
    [
        (
            Kind.TRAIN,
            TRAIN,
            {"checkpoint": "gs://b/runs/9", "best_checkpoint": "gs://b/runs/5", "warm_start": "gs://b/old/3"},
            ["gs://b/in", "file:///d/te%20st", "gs://b/old/3"],
            ["gs://b/runs/9", "gs://b/runs/5"],
        ),
        (Kind.TRAIN, {"datasets": {}}, {"checkpoint": None, "warm_start": None}, [], []),
        (Kind.INFERENCE, INFERENCE, {"output": "gs://b/out"}, ["gs://b/in", "gs://b/runs/9"], ["gs://b/out"]),
        (Kind.INFERENCE, {**INFERENCE, "model": None}, {"output": "gs://b/out"}, ["gs://b/in"], ["gs://b/out"]),
        (Kind.SERVE, {"model": "gs://b/runs/9"}, {"endpoint": "http://x"}, ["gs://b/runs/9"], []),
        (Kind.JOB, {"how": "script"}, {"value": 1}, [], []),
    ],
)
def test_what_goes_in_and_what_comes_out(kind, arguments, value, read, written):
    request = SimpleNamespace(kind=kind, arguments=arguments)
    assert (reads(request, value), writes(request, value)) == (read, written)


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("gs://b/runs/a%20run/9", ("gs://b", "runs/a run/9")),
        ("gs://b", ("gs://b", "/")),
        ("file:///d/a%20run/9", ("file", "/d/a run/9")),
    ],
)
def test_what_is_in_a_bucket_or_on_a_disk_is_called_as_others_call_it(uri, named):
    assert dataset(uri) == named


async def test_airflows_provider_is_told_once_the_task_is_done(place_with, tmp_path, monkeypatch):
    pytest.importorskip("airflow.providers.openlineage", reason="Airflow's OpenLineage provider is optional")
    from airflow.providers.openlineage.extractors.base import DefaultExtractor

    monkeypatch.setenv("AIRFLOW__RAYTPU__POLL_INTERVAL", "0")
    place_with(ScriptedBackend([succeeded({"step": 9, "checkpoint": "gs://b/runs/9", "rows_out": 7})]))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").touch()
    operator = JaxTrainerOperator(
        task_id="train",
        train_loop="json:dumps",
        slice="v6e:4x4",
        datasets={"train": str(tmp_path / "in")},
        deferrable=False,
    )
    assert DefaultExtractor(operator).extract_on_complete(None) is None
    await operator.aexecute(context(TaskInstance()))

    told = DefaultExtractor(operator).extract_on_complete(None)
    assert [(each.namespace, each.name) for each in told.inputs] == [("file", str(tmp_path / "in"))]
    assert [(each.namespace, each.name) for each in told.outputs] == [("gs://b", "runs/9")]
    assert told.outputs[0].outputFacets["outputStatistics"].rowCount == 7
