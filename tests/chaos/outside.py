"""What Airflow's database, Ray's own tables and the process table say, without a word of the provider's verdicts."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy

from airflow_raytpu.backends.simulated.processes import ProcessId

_TRIES = 5

OVER = {"success", "failed", "skipped", "upstream_failed", "removed"}


@dataclass(frozen=True, slots=True)
class Task:
    """A task as Airflow's database has it; ``None`` for *state* where it was never scheduled."""

    state: str | None
    tries: int
    began: float
    ended: float

    @property
    def over(self) -> bool:
        return self.state in OVER


class AirflowTables:
    """Reads the database itself, which answers while the API server is dead.

    :param url: the database's, as Airflow has it.
    """

    def __init__(self, home: Path, url: str) -> None:
        self._engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        self._logs = home / "logs"

    def task(self, dag_id: str, run_id: str, task_id: str) -> Task | None:
        """``None`` where its run was deleted."""
        rows = self._rows(
            "select state, try_number, start_date, end_date from task_instance"
            " where dag_id=:dag_id and run_id=:run_id and task_id=:task_id",
            dag_id=dag_id,
            run_id=run_id,
            task_id=task_id,
        )
        return Task(rows[0][0], rows[0][1], _epoch(rows[0][2]), _epoch(rows[0][3])) if rows else None

    def run_state(self, dag_id: str, run_id: str) -> str | None:
        query = "select state from dag_run where dag_id=:dag_id and run_id=:run_id"
        rows = self._rows(query, dag_id=dag_id, run_id=run_id)
        return rows[0][0] if rows else None

    def log(self, dag_id: str, run_id: str, task_id: str) -> list[tuple[float, str, str]]:
        """Moment, level and text of each line that the task's tries and triggers wrote, in their order."""
        folder = self._logs / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}"
        found = []
        for path in folder.glob("*") if folder.is_dir() else ():
            for line in path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    entry = json.loads(line)
                    text = entry["event"] + "".join(
                        f" | {each['exc_value']}" for each in entry.get("error_detail") or ()
                    )
                    found.append((_epoch(entry["timestamp"]), str(entry.get("level", "")), text))
        return sorted(found)

    def _rows(self, query: str, **values: str) -> list[Any]:
        with self._engine.connect() as database:
            return list(database.execute(sqlalchemy.text(query), values).all())


class RayTables:
    """Ray's own REST interface of one cluster."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Each submitted job by its submission id."""
        return {job["submission_id"]: job for job in self._get("/api/jobs/") if job.get("submission_id")}

    def groups(self) -> list[str]:
        """Placement groups that are not removed."""
        return [row["placement_group_id"] for row in self._rows("placement_groups") if row["state"] != "REMOVED"]

    def actors(self) -> list[str]:
        """Living actors, without those of Serve, and of Ray Data's bookkeeping, which outlive every job."""
        alive = [row["class_name"] for row in self._rows("actors") if row["state"] in {"ALIVE", "PENDING_CREATION"}]
        return [name for name in alive if not name.startswith(("Serve", "ProxyActor", "_"))]

    def addresses(self) -> dict[str, str]:
        """The address of each node by its id."""
        return {row["node_id"]: row["node_ip"] for row in self._rows("nodes")}

    def _rows(self, what: str) -> list[dict[str, Any]]:
        return list(self._get(f"/api/v0/{what}?detail=1&limit=10000")["data"]["result"]["result"])

    def _get(self, path: str) -> Any:
        request = urllib.request.Request(self._url + path, headers={"Authorization": f"Bearer {self._token}"})
        for left in reversed(range(_TRIES)):
            try:
                with self._opener.open(request, timeout=30) as answer:
                    return json.loads(answer.read())
            except OSError:
                if not left:
                    raise
                time.sleep(3)
        raise AssertionError


def ask(url: str) -> dict[str, Any] | None:
    """What an application answers, ``None`` where it does not."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as answer:
            return dict(json.loads(answer.read()))
    except (OSError, ValueError):
        return None


def driver(name: str) -> list[ProcessId]:
    """The driver of the Ray job that carries out the request *name*."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if words[1:3] == ["-m", "airflow_raytpu.runtime"] and any(
                f"/{name}.request.json" in word for word in words
            ):
                found.append(ProcessId.of(int(path.parent.name)))
    return [each for each in found if each]


def _epoch(found: str | datetime | None) -> float:
    if not found:
        return 0.0
    # SQLite has text for it.
    moment = found if isinstance(found, datetime) else datetime.fromisoformat(found.replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
