"""What a run looks like at one moment: Airflow's task states and the runtime's own progress, put together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_raytpu.backends.simulated import state
from airflow_raytpu.model.errors import ClusterError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import Progress

ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

_ACTIVE = frozenset({"running", "deferred", "up_for_retry", "restarting"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """One task now.

    :param state: Airflow's word, ``""`` before it is scheduled.
    :param elapsed_s: since its first start, until its end.
    """

    task_id: str
    state: str = ""
    try_number: int = 0
    elapsed_s: float = 0.0
    progress: Progress | None = None
    detail: str = ""

    @property
    def active(self) -> bool:
        return self.state in _ACTIVE

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def note(self) -> str:
        """What it is doing, in one line."""
        if self.progress:
            return self.progress.describe()
        return self.detail if self.active else ""


def order(downstream: Mapping[str, list[str]]) -> list[str]:
    """Task ids so that each stands after all it waits for, and close after them."""
    waits = {task: {other for other, after in downstream.items() if task in after} for task in downstream}
    placed: list[str] = []
    while len(placed) < len(waits):
        ready = [task for task in waits if task not in placed and waits[task] <= set(placed)]
        if not ready:
            return list(downstream)
        # Depth first reads as a story: what the last one made possible comes next.
        placed.append(max(ready, key=lambda task: max((placed.index(other) for other in waits[task]), default=-1)))
    return placed


def views(
    tasks: list[str], instances: Sequence[Mapping[str, Any]], words: Mapping[str, Progress], cluster: str, now: datetime
) -> list[TaskView]:
    """One view a task, in the order of *tasks*.

    :param instances: task instances as Airflow's REST API gives them.
    :param words: the newest progress of each task.
    :param cluster: what the simulated clusters are doing, told by the task that only waits for one.
    """
    by_id = {str(instance["task_id"]): instance for instance in instances}
    return [_view(task, by_id.get(task, {}), words.get(task), cluster, now) for task in tasks]


def read_progress(storage: Path, dag_id: str, run_id: str, tasks: list[str]) -> dict[str, Progress]:
    """The newest progress that the runtime wrote for each task of a run."""
    found: dict[str, Progress] = {}
    for task in tasks:
        folder = Identity(deployment="", dag_id=dag_id, task_id=task, run_id=run_id).storage_path()
        for path in (storage / folder / "outbox").glob("*.progress.json"):
            progress = Progress.from_dict(json.loads(path.read_text()))
            if task not in found or progress.at >= found[task].at:
                found[task] = progress
    return found


def describe_clusters(root: Path) -> str:
    """What the simulated clusters in *root* are doing: ``starting: 3 of 4 hosts up``."""
    lines = []
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        try:
            record = state.read(folder)
        except ClusterError:  # not a cluster, or one that is just being removed
            continue
        if record is not None:
            hosts = [host for part in record.slices for host in part.hosts]
            up = sum(bool(host.raylet and host.alive) for host in hosts)
            lines.append(f"{record.phase.value}: {up} of {len(hosts)} hosts up  {record.detail}".rstrip())
    return "; ".join(lines)


def _view(task: str, instance: Mapping[str, Any], progress: Progress | None, cluster: str, now: datetime) -> TaskView:
    status = instance.get("state") or ""
    began = _time(instance.get("start_date"))
    ended = _time(instance.get("end_date")) if status in ENDED else now
    return TaskView(
        task_id=task,
        state=status,
        try_number=instance.get("try_number") or 0,
        elapsed_s=max(0.0, (ended - began).total_seconds()) if began and ended else 0.0,
        progress=progress,
        # A task that is deferred waits for a cluster; one that runs does its own work.
        detail=cluster if status == "deferred" and not progress else "",
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None
