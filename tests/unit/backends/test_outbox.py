from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("what", ["progress", "result"])
@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"request": "%s"', "\x00\x00"])
async def test_a_file_that_was_cut_off_is_as_good_as_absent(request_: RayRequest, what: str, text: str, caplog) -> None:
    put(request_, what, text % request_.name if "%" in text else text)
    assert await outbox.read(request_) == (None, None)
    assert f"The {what} of {request_.name} cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("progress", {}),
        ("progress", {"phase": "training", "at": "soon"}),
        ("progress", {"phase": "training", "at": float("nan")}),
        ("progress", {"phase": "training", "at": 1.0, "done": "3"}),
        ("progress", {"phase": 7, "at": 1.0}),
        ("result", {"value": [1]}),
        ("result", {"code": None}),
    ],
)
async def test_a_file_that_was_edited_into_something_else_is_as_good_as_absent(
    request_: RayRequest, what: str, fields: dict[str, Any]
) -> None:
    put(request_, what, json.dumps({"request": request_.name, **fields}))
    assert await outbox.read(request_) == (None, None)


@pytest.mark.parametrize("text", ["", "{", "[]"])
async def test_a_note_of_submission_that_was_cut_off_does_not_make_a_second_job(
    request_: RayRequest, text: str
) -> None:
    put(request_, "submitted", text)
    with pytest.raises(PathError, match="submitted"):
        await outbox.submitted(request_)
