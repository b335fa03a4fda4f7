"""A task's templated fields, rendered as far as that is possible without a run."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import jinja2
from airflow.sdk import XComArg
from airflow.sdk.exceptions import ParamValidationError

from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.operators._lifecycle import RequestOperator

RUN = "<run>"
"""Stands for the run's id."""

# What a template can raise on values that are not there yet; it is then shown as it is written.
_NOT_YET = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


class Renderer:
    """Renders with the DAG's parameters, changed by *conf* as a trigger would.

    :raises RequestError: Airflow would refuse *conf*.
    """

    def __init__(self, dag: Any, conf: Mapping[str, Any]) -> None:
        self._dag, self._conf = dag, conf
        self._env = dag.get_template_env()
        self._env.undefined = jinja2.StrictUndefined
        self._params = _values(dag.params, conf)

    def task(self, task: RequestOperator) -> RequestOperator:
        """A copy of *task*; what only a run knows stays as it is written."""
        copy: Any = task.prepare_for_execution()
        context = self._context(task)
        for name in task.template_fields:
            setattr(copy, name, self._fill(getattr(task, name), context))
        cluster = _cluster_of(task)
        if cluster is not None:
            theirs = self._fill(cluster.slice, self._context(cluster))
            copy.cluster = {"cluster": f"of task {cluster.task_id}", "slice": theirs}
        return copy  # type: ignore[no-any-return]

    def _context(self, task: Any) -> dict[str, Any]:
        params = {**_values(task.params, self._conf), **self._params}
        run = SimpleNamespace(run_id=RUN, conf=dict(self._conf))
        return {"params": params, "dag": self._dag, "task": task, "run_id": RUN, "dag_run": run}

    def _fill(self, value: Any, context: Mapping[str, Any]) -> Any:
        if isinstance(value, str):
            return self._text(value, context)
        if isinstance(value, Mapping):
            return {key: self._fill(each, context) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._fill(each, context) for each in value)
        return value

    def _text(self, text: str, context: Mapping[str, Any]) -> Any:
        if "{{" not in text and "{%" not in text:
            return text
        try:
            result = self._env.from_string(text).render(context)
        except _NOT_YET:
            return text
        # An environment of native objects hands an undefined value through instead of raising.
        return text if isinstance(result, jinja2.Undefined) else result


def _cluster_of(task: Any) -> Any:
    """The task that brings up the cluster *task* runs on."""
    reference = getattr(task, "cluster", None)
    if not isinstance(reference, XComArg):
        return None
    return next((other for other, _ in reference.iter_references() if isinstance(other, RequestOperator)), None)


def _values(params: Any, conf: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(conf)
    for name in params:
        param = params.get_param(name)
        try:
            values[name] = param.resolve(conf[name]) if name in conf else param.resolve()
        except ParamValidationError as error:
            # A parameter without a default is filled in by whoever triggers; what needs it is shown as it is written.
            if name in conf:
                raise RequestError(
                    f"Airflow would refuse the parameter {name}: {str(error).splitlines()[0]}.", "Correct --conf."
                ) from error
    return values
