"""A small synchronous client of Airflow's REST API; only what the demo asks."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from airflow_raytpu.model.errors import BackendUnreachable, PlaceError

_TIMEOUT_S = 30.0
_FAILED_LINES = 15


class AirflowApi:
    """Airflow at *base*, as the simple auth manager's *user*.

    Every call raises ``BackendUnreachable`` where there is no answer, ``PlaceError`` where the answer is a refusal.
    """

    def __init__(self, base: str, user: str, password: str) -> None:
        self._base = base
        self._login = {"username": user, "password": password}
        self._token = ""
        # No proxy: this is the loopback interface.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def wake(self) -> None:
        """Have the API server build the part that tasks talk to."""
        self._call("GET", "/execution/health")

    def health(self) -> bool:
        """Whether all four components say that they are well."""
        parts = self._call("GET", "/api/v2/monitor/health")
        wanted = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(parts.get(name, {}).get("status") == "healthy" for name in wanted)

    def log_in(self) -> None:
        self._token = self._call("POST", "/auth/token", self._login)["access_token"]

    def has_dag(self, dag_id: str) -> bool:
        try:
            self._call("GET", f"/api/v2/dags/{quote(dag_id)}")
        except _NotFound:
            return False
        return True

    def import_errors(self) -> list[str]:
        """Why DAG files could not be read."""
        return [entry["stack_trace"] for entry in self._call("GET", "/api/v2/importErrors")["import_errors"]]

    def tasks(self, dag_id: str) -> dict[str, list[str]]:
        """Each task's id and the ids of those that follow it."""
        tasks = self._call("GET", f"/api/v2/dags/{quote(dag_id)}/tasks")["tasks"]
        return {task["task_id"]: task["downstream_task_ids"] or [] for task in tasks}

    def trigger(self, dag_id: str) -> str:
        """Unpause the DAG and start a run; its id."""
        path = f"/api/v2/dags/{quote(dag_id)}"
        self._call("PATCH", path, {"is_paused": False})
        return str(self._call("POST", f"{path}/dagRuns", {"logical_date": None, "conf": {}})["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self._call("GET", _run(dag_id, run_id))["state"])

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        return list(self._call("GET", f"{_run(dag_id, run_id)}/taskInstances?limit=100")["task_instances"])

    def result(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """What the task returned; ``None`` where it returned nothing."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/return_value"
        try:
            value = self._call("GET", path)["value"]
        except _NotFound:
            return None
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return json.loads(value)
        return value

    def last_words(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> list[str]:
        """The end of a task's log: its errors, or whatever stands last where it logged none."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{try_number}?full_content=true"
        try:
            content = self._call("GET", path)["content"]
        except _NotFound:
            return []
        errors = [entry for entry in content if isinstance(entry, dict) and entry.get("level") in {"error", "critical"}]
        return [line for entry in errors or content for line in _log_lines(entry)][-_FAILED_LINES:]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 - always http to the loopback interface
            self._base + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"}
            | ({"Authorization": f"Bearer {self._token}"} if self._token else {}),
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            kind = _NotFound if error.code == 404 else BackendUnreachable if error.code >= 500 else PlaceError
            text = error.read()[:300].decode(errors="replace")
            raise kind(f"Airflow answered {error.code} to {method} {path}: {text}") from error
        except (OSError, http.client.HTTPException) as error:
            raise BackendUnreachable(f"Airflow did not answer {method} {path}: {error}.") from error


class _NotFound(PlaceError):
    """There is no such thing."""


def _run(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}"


def _log_lines(entry: Any) -> list[str]:
    """One event of a task's log as lines for people, an exception with its traceback's end."""
    if isinstance(entry, str):
        return entry.splitlines()
    lines = str(entry.get("event", "")).splitlines()
    for error in entry.get("error_detail") or []:
        frames = error.get("frames") or []
        lines += [f"  {frame['filename']}:{frame['lineno']} in {frame['name']}" for frame in frames[-3:]]
        lines += f"{error.get('exc_type')}: {error.get('exc_value')}".splitlines()
    return lines
