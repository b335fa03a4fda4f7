"""The client against a server that answers as Airflow 3.3.2 was seen to answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from airflow_raytpu.demo.api import AirflowApi
from airflow_raytpu.model.errors import BackendUnreachable, PlaceError

RUN = "/api/v2/dags/digits/dagRuns/manual__2026-11-29T12%3A00%3A00%2B00%3A00"
RUN_ID = "manual__2026-11-29T12:00:00+00:00"


class FakeAirflow(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, tuple[int, Any]]] = {}
    seen: ClassVar[list[tuple[str, str, Any, str | None]]] = []

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append((self.command, self.path, json.loads(body or b"null"), self.headers.get("Authorization")))
        status, value = self.answers.get(f"{self.command} {self.path}", (404, {"detail": "Not Found"}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[AirflowApi]:
    FakeAirflow.answers, FakeAirflow.seen = {"POST /auth/token": (201, {"access_token": "t"})}, []
    with HTTPServer(("127.0.0.1", 0), FakeAirflow) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        client = AirflowApi(f"http://127.0.0.1:{server.server_port}", "admin", "secret")
        client.log_in()
        yield client
        server.shutdown()
        thread.join()


def test_it_logs_in_and_says_who_it_is(api: AirflowApi):
    FakeAirflow.answers["GET /api/v2/dags/digits"] = (200, {"dag_id": "digits"})
    assert api.has_dag("digits")
    assert FakeAirflow.seen == [
        ("POST", "/auth/token", {"username": "admin", "password": "secret"}, None),
        ("GET", "/api/v2/dags/digits", None, "Bearer t"),
    ]


def test_an_unknown_dag(api: AirflowApi):
    assert not api.has_dag("digits")


@pytest.mark.parametrize(("status", "healthy"), [("healthy", True), ("unhealthy", False), (None, False)])
def test_health(api: AirflowApi, status: str | None, healthy: bool):
    parts = {name: {"status": "healthy"} for name in ("metadatabase", "scheduler", "triggerer")}
    FakeAirflow.answers["GET /api/v2/monitor/health"] = (200, {**parts, "dag_processor": {"status": status}})
    assert api.health() is healthy


def test_a_run_is_started_unpaused(api: AirflowApi):
    FakeAirflow.answers["PATCH /api/v2/dags/digits"] = (200, {})
    FakeAirflow.answers["POST /api/v2/dags/digits/dagRuns"] = (200, {"dag_run_id": RUN_ID})
    assert api.trigger("digits") == RUN_ID
    assert [(method, body) for method, _, body, _ in FakeAirflow.seen[1:]] == [
        ("PATCH", {"is_paused": False}),
        ("POST", {"logical_date": None, "conf": {}}),
    ]


def test_what_a_task_returned(api: AirflowApi):
    path = f"GET {RUN}/taskInstances/evaluate/xcomEntries/return_value"
    assert api.result("digits", RUN_ID, "evaluate") is None
    for value, read in (('{"accuracy": 0.97}', {"accuracy": 0.97}), ({"a": 1}, {"a": 1}), ("plain", "plain")):
        FakeAirflow.answers[path] = (200, {"value": value})
        assert api.result("digits", RUN_ID, "evaluate") == read


def test_the_last_words_of_a_task_are_its_errors(api: AirflowApi):
    error = {
        "event": "Task failed with exception",
        "level": "error",
        "error_detail": [
            {
                "exc_type": "ValueError",
                "exc_value": "labels out of range: 10\nraise it",
                "frames": [{"filename": f"{name}.py", "lineno": 5, "name": "f"} for name in "abcd"],
            }
        ],
    }
    content = [{"event": "::group::Pre", "sources": ["x"]}, error, {"event": "::group::Post", "level": "info"}]
    FakeAirflow.answers[f"GET {RUN}/taskInstances/train/logs/2?full_content=true"] = (200, {"content": content})
    assert api.last_words("digits", RUN_ID, "train", 2) == [
        "Task failed with exception",
        *(f"  {name}.py:5 in f" for name in "bcd"),
        "ValueError: labels out of range: 10",
        "raise it",
    ]


def test_last_words_without_an_error_are_the_last_lines(api: AirflowApi):
    content = [{"event": f"line {number}", "level": "info"} for number in range(30)]
    FakeAirflow.answers[f"GET {RUN}/taskInstances/train/logs/1?full_content=true"] = (200, {"content": content})
    assert api.last_words("digits", RUN_ID, "train", 1)[-1] == "line 29"
    assert api.last_words("digits", RUN_ID, "other", 1) == []


@pytest.mark.parametrize(("status", "kind"), [(500, BackendUnreachable), (503, BackendUnreachable), (403, PlaceError)])
def test_a_refusal_is_told_with_its_reason(api: AirflowApi, status: int, kind: type[PlaceError]):
    FakeAirflow.answers["GET /api/v2/dags/digits"] = (status, {"detail": "because"})
    with pytest.raises(kind, match=rf"answered {status} to GET /api/v2/dags/digits.*because"):
        api.has_dag("digits")


def test_no_answer_at_all():
    with pytest.raises(BackendUnreachable, match="did not answer"):
        AirflowApi("http://127.0.0.1:1", "a", "b").log_in()
