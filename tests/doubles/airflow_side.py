"""Airflow's side of a task, as far as the lifecycle looks at it: a task instance, its context, and a place to run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

_IDS = itertools.count(1)


@dataclass
class TaskInstance:
    """One try. A retry is another one with the same *max_tries*; clearing raises it."""

    dag_id: str = "digits"
    task_id: str = "train"
    run_id: str = "manual__1"
    map_index: int = -1
    max_tries: int = 0
    id: str = field(default_factory=lambda: f"ti-{next(_IDS)}")
    xcoms: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


def context(ti: TaskInstance, started: str = "2026-11-29T10:00") -> dict[str, Any]:
    return {"ti": ti, "dag_run": SimpleNamespace(start_date=started)}


@dataclass
class Place:
    """Stands for :class:`airflow_raytpu.hooks.raytpu.Place`; every opening gives the same backend."""

    storage: str
    backend: Any
    stated: bool = True

    def open(self) -> Any:
        return self.backend

    def options_of(self, stated: Any) -> dict[str, Any]:
        return {}
