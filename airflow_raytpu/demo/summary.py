"""What a run came to, for people. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_raytpu.demo.home import DemoHome
from airflow_raytpu.demo.watch import TaskView


def results(values: Mapping[str, Any]) -> list[str]:
    """The lines that matter of a run of the DAG ``digits``.

    :param values: what each task returned, by task id; a task that returned nothing has no line.
    """
    train, infer, checked, served, asked = (
        _mapping(values.get(task)) for task in ("train", "infer", "evaluate", "serve", "query")
    )
    lines = []
    if train:
        where = f"{train.get('devices')} devices of {train.get('processes')} processes"
        lines.append(_line("trained", f"{train.get('step')} steps on {where}"))
    if checked:
        lines.append(_line("test accuracy", f"{checked.get('accuracy'):.4f}"))
    if infer:
        lines.append(_line("rows", f"{infer.get('rows_in'):,} in, {infer.get('rows_out'):,} out"))
    if served:
        lines.append(_line("served at", str(served.get("endpoint"))))
    if asked:
        answer = json.dumps(asked.get("answer"))
        lines.append(_line("it answered", f"{asked.get('status')} {answer}; the digit is {asked.get('label')}"))
    return lines


def access(home: DemoHome, user: str, password: str) -> str:
    return f"Airflow's UI: {home.url}  user {user}  password {password}"


def failures(tasks: list[TaskView]) -> list[TaskView]:
    """Tasks that failed by themselves, not because of others."""
    return [task for task in tasks if task.state == "failed"]


def _line(name: str, value: str) -> str:
    return f"  {name:<14} {value}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
