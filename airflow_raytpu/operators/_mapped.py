"""Mapped tasks, checked when the DAG is parsed as far as ``partial()`` and ``expand()`` state what they ask for.

Airflow makes the operators of a mapped task on the worker, and asks their class nothing before that (3.3). So copies
are made here as the worker makes them, and thrown away: one in which all that is mapped is open, and one for each value
that stands in the DAG file. What two mapped values are together is checked when a copy runs, as is what a run alone
knows.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.bases.decorator import DecoratedMappedOperator
from airflow.sdk.definitions._internal.setup_teardown import SetupTeardownContext
from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial

from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.policies import RetryBudget
from airflow_raytpu.model.request import Kind
from airflow_raytpu.operators import _arguments
from airflow_raytpu.storage.code import Code

_PACKAGE = __name__.partition(".")[0]
_CODE = ("train_loop", "predict", "run", "app")
_SOME_CODE = Code("some:function")


class _Open(dict[str, Any]):
    """Stands for what only a run knows: no literal, and empty where a mapping is looked into."""

    def resolve(self, context: Any) -> Any:
        """What tells it from a literal, see :func:`_arguments.is_literal`."""
        raise NotImplementedError


class Partial:
    """What ``Operator.partial()`` gives: Airflow's own, whose ``expand()`` refuses what cannot work."""

    def __init__(self, partial: OperatorPartial) -> None:
        self._partial = partial

    def expand(self, **mapped: Any) -> MappedOperator:
        """As Airflow's own.

        :raises RequestError: what is stated cannot work; it says which element.
        """
        task = self._partial.expand(**mapped)
        refuse_expanded(task, mapped)
        return task

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
        """As Airflow's own.

        :raises RequestError: what is stated cannot work; it says which element.
        """
        task = self._partial.expand_kwargs(kwargs, strict=strict)
        refuse_expanded_kwargs(task, kwargs, strict=strict)
        return task


def refuse_expanded(task: MappedOperator, mapped: Mapping[str, Any]) -> None:
    """Refuse literals of *task*, mapped by ``expand(**mapped)``, that cannot work.

    :raises RequestError: the first error.
    """
    if not _is_ours(task):
        return
    copies = _Copies(task)
    whole = dict.fromkeys(mapped, _Open())
    copies.try_out(whole)
    for name, values in mapped.items():
        for place, value in _elements(values):
            copies.try_out({**whole, name: value}, f"{name}[{place}] of expand()")


def refuse_expanded_kwargs(task: MappedOperator, kwargs: Any, *, strict: bool) -> None:
    """Refuse literals of *task*, mapped by ``expand_kwargs(kwargs)``, that cannot work.

    :param strict: what ``partial()`` states may not be stated again.
    :raises RequestError: the first error.
    """
    if not _is_ours(task):
        return
    copies = _Copies(task)
    stated = [(place, values) for place, values in _elements(kwargs) if isinstance(values, Mapping)]
    if not stated or len(stated) < len(kwargs):
        # Any argument may come with the run. What is not strict may even replace those that stand here.
        named: Iterable[str] | None = copies.left_open() if strict else None
    else:
        named = {name for _, values in stated for name in values}
    if named is not None:
        copies.try_out(dict.fromkeys(named, _Open()))
    for place, values in stated:
        copies.try_out(values, f"element {place} of expand_kwargs()")


class _Copies:
    """Makes copies of a mapped task that no other task hears of."""

    def __init__(self, task: MappedOperator) -> None:
        # A copy of the object alone, which is in no DAG: what it states can be replaced.
        self._task: Any = copy.copy(task)
        self._task.partial_kwargs = _apart(task.partial_kwargs)
        self._decorated = isinstance(task, DecoratedMappedOperator)

    def try_out(self, values: Mapping[str, Any], where: str = "") -> None:
        """Make a copy with *values* for what is mapped.

        :param where: in the DAG file they stand; empty for what ``partial()`` states.
        :raises RequestError: there can be no such task.
        """
        mapped = {"op_kwargs": values} if self._decorated else self._understood(_apart(values))
        try:
            with _outside_of_with_blocks():
                self._task.unmap(mapped)
        except RequestError as error:
            if not where:
                raise
            raise type(error)(f"{where}: {error.cause}", error.lever) from error
        # Found once, the author's code need not be read again for each element.
        stated = self._task.partial_kwargs
        stated.update((name, _SOME_CODE) for name in _CODE if name in stated and not _is_program(stated[name]))

    def left_open(self) -> set[str]:
        """The arguments that ``partial()`` does not state."""
        if self._decorated:
            of, stated = self._task.python_callable, self._task.partial_kwargs["op_kwargs"]
        else:
            of, stated = self._task.operator_class, self._task.partial_kwargs
        parameters = inspect.signature(of).parameters.values()
        named = {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
        return named.difference(stated)

    def _understood(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """*values* as a constructor takes them, with nothing for what is open that would speak against the rest."""
        known: dict[str, Any] = {}
        for name, value in values.items():
            if not hasattr(value, "resolve"):
                known[name] = value
            elif name in _CODE:
                known[name] = _SOME_CODE
            elif name == "retry_budget":
                known[name] = RetryBudget(failures=1)
            elif name == "argv" or (name == "name" and self._task.operator_class.kind is not Kind.SERVE):
                known[name] = None
            elif name in self._task.template_fields or name == "output":
                known[name] = value if isinstance(value, _Open) else _Open()
        return known


def _is_ours(task: MappedOperator) -> bool:
    """Nobody else's constructor is asked: what it makes of an argument that is open, or left out, is not known here."""
    return str(task.operator_class.__init__.__module__).startswith(f"{_PACKAGE}.")


def _elements(values: Any) -> Iterator[tuple[Any, Any]]:
    """What stands in the DAG file of what is mapped: where, and what."""
    if not _arguments.is_literal(values):
        return
    found = enumerate(values.items()) if isinstance(values, Mapping) else enumerate(values)
    yield from ((place, value) for place, value in found if not hasattr(value, "resolve"))


def _apart(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* with what is known of a cluster in its task's place, which would count the copy among its users."""
    cluster = values.get("cluster")
    if isinstance(cluster, BaseOperator) or hasattr(cluster, "resolve"):
        return {**values, "cluster": _Open(slice=_arguments.slice_of(cluster))}
    return dict(values)


def _is_program(code: Any) -> bool:
    """A script or module of a job: that it is no function decides what arguments it takes."""
    return isinstance(code, str) and ":" not in code


@contextlib.contextmanager
def _outside_of_with_blocks() -> Iterator[None]:
    """What is made inside ``with cluster:`` is one of the tasks that Airflow puts between a setup and its teardown."""
    active, SetupTeardownContext.active = SetupTeardownContext.active, False
    try:
        yield
    finally:
        SetupTeardownContext.active = active
