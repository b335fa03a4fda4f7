from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_raytpu.backends import outbox
from airflow_raytpu.model.errors import PathError
from airflow_raytpu.model.observation import Progress
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.storage import objects
from tests.simulated_cluster import job_request


@pytest.fixture
def request_(tmp_path: Path) -> RayRequest:
    return job_request("train", tmp_path / "run 1", "file:///code.zip")


def put(request: RayRequest, what: str, text: str) -> None:
    objects.write_bytes(request.outbox(what), text.encode())


async def test_what_is_asked_for_is_written_where_the_runtime_looks(request_: RayRequest) -> None:
    uri = await outbox.write_request(request_)
    assert uri == request_.outbox("request")
    assert RayRequest.from_dict(objects.read_json(uri)) == request_


async def test_nothing_there_is_nothing(request_: RayRequest) -> None:
    assert await outbox.read(request_) == (None, None)


async def test_progress_and_result_are_read(request_: RayRequest) -> None:
    progress = Progress(request=request_.name, phase="training", at=1.0, done=3, total=10)
    outcome = Outcome(request=request_.name, value={"step": 10})
    put(request_, "progress", json.dumps(progress.to_dict()))
    put(request_, "result", json.dumps(outcome.to_dict()))
    assert await outbox.read(request_) == (progress, outcome)


async def test_a_file_that_speaks_for_another_attempt_is_not_heard(request_: RayRequest) -> None:
    put(request_, "progress", json.dumps({"request": "other", "phase": "training", "at": 1.0}))
    put(request_, "result", json.dumps({"request": "other"}))
    assert await outbox.read(request_) == (None, None)


async def test_a_file_that_is_not_json_is_an_error_that_names_it(request_: RayRequest) -> None:
    put(request_, "result", "{")
    with pytest.raises(PathError, match="result"):
        await outbox.read(request_)
