"""The command, from its arguments to its exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from airflow_raytpu.explain import dags
from airflow_raytpu.explain.dags import BrokenDagError, UnknownNameError

ERRORS, UNKNOWN = 1, 2
"""Exit status: something cannot work; there is no such DAG or task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user asked.

    :param conf: what a trigger would hand over.
    :param output: ``text``, ``json``, ``yaml``, or ``manifest`` for the Kubernetes objects alone.
    """

    dag_id: str
    task_id: str | None = None
    conf: Mapping[str, Any]
    folder: Path | None = None
    output: str = "text"


def run(question: Question) -> int:
    """Print the answer; the exit status.

    :raises RequestError: Airflow would refuse the conf.
    """
    try:
        dag = dags.read(question.folder).dag(question.dag_id)
        tasks = _chosen(dag, question.task_id)
    except UnknownNameError as error:
        print(error, file=sys.stderr)
        return UNKNOWN
    except BrokenDagError as error:
        print(error, file=sys.stderr)
        return ERRORS
    # These import Airflow, whose logging is set up before that.
    from airflow_raytpu.explain.asking import ask, has_errors
    from airflow_raytpu.explain.rendering import Renderer

    renderer = Renderer(dag, question.conf)
    asked = [ask(task, renderer, copies) for task, copies in tasks]
    _print(asked, question)
    return ERRORS if any(map(has_errors, asked)) else 0


def _chosen(dag: Any, task_id: str | None) -> list[tuple[Any, int | None]]:
    """Our tasks in the order they run, a mapped one as its first copy and the number of copies."""
    from airflow_raytpu.operators._lifecycle import RequestOperator

    ours: dict[str, tuple[Any, int | None]] = {}
    for task in dag.topological_sort():
        if isinstance(task, RequestOperator):
            ours[task.task_id] = (task, None)
        elif issubclass(getattr(task, "operator_class", object), RequestOperator):
            first = _first_copy(task)
            if first is not None:
                ours[task.task_id] = first
    if task_id is None:
        return list(ours.values())
    if task_id not in ours:
        what = "is none of this package's" if task_id in dag.task_ids else "does not exist"
        raise UnknownNameError(f"The task {task_id!r} of {dag.dag_id} {what}. {dags.near(task_id, ours)}")
    return [ours[task_id]]


def _first_copy(task: Any) -> tuple[Any, int] | None:
    """The first copy of a mapped task whose values stand in the DAG; ``None`` where only a run knows them."""
    values = getattr(task.expand_input, "value", None)
    if not isinstance(values, Mapping) or not all(isinstance(each, list | tuple) and each for each in values.values()):
        return None
    first = task.unmap({name: each[0] for name, each in values.items()})
    return first, prod(len(each) for each in values.values())


def _print(asked: Sequence[Mapping[str, Any]], question: Question) -> None:
    match question.output:
        case "json":
            print(json.dumps(asked, indent=2))
        case "yaml":
            import yaml

            print(yaml.safe_dump(list(asked), sort_keys=False), end="")
        case "manifest":
            import yaml

            made = [one["manifest"] for one in asked if one["manifest"]]
            print(yaml.safe_dump_all(made, sort_keys=False), end="")
        case _ if not asked:
            print(f"No task of {question.dag_id} asks for a slice.")
        case _:
            from rich.console import Console

            from airflow_raytpu.explain import screen

            screen.show(asked, Console(highlight=False))
