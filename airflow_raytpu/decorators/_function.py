"""What all decorated functions have in common: they run elsewhere, where there is no Airflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import attrs
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, _TaskDecorator
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_raytpu.model.errors import CodeError
from airflow_raytpu.operators._lifecycle import outputs
from airflow_raytpu.operators._mapped import refuse_expanded, refuse_expanded_kwargs
from airflow_raytpu.storage.code import Code, find_code


# Airflow's factory makes nothing but its own class, which has no public name (3.3).
class _Decorated(_TaskDecorator[Any, Any, Any]):
    """A decorated function, as Airflow's own, but that ``expand()`` refuses what cannot work."""

    def override(self, **arguments: Any) -> Any:
        return super().override(**outputs(arguments))

    def expand(self, **mapped: Any) -> Any:
        output: Any = super().expand(**mapped)
        refuse_expanded(output.operator, mapped)
        return output

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> Any:
        output: Any = super().expand_kwargs(kwargs, strict=strict)
        refuse_expanded_kwargs(output.operator, kwargs, strict=strict)
        return output


def task_decorator(
    operator_class: type[DecoratedOperator],
    python_callable: Callable[..., Any] | None,
    multiple_outputs: bool | None,
    arguments: Mapping[str, Any],
) -> TaskDecorator:
    """What makes tasks of functions, or of *python_callable* alone.

    :param multiple_outputs: where left out, the function's return type says it.
    :param arguments: of *operator_class*, as the author states them.
    """
    multiple: Any = attrs.NOTHING if multiple_outputs is None else multiple_outputs

    def decorate(function: Callable[..., Any]) -> _Decorated:
        return _Decorated(
            function=function, multiple_outputs=multiple, operator_class=operator_class, kwargs=outputs(arguments)
        )

    return cast("TaskDecorator", decorate if python_callable is None else decorate(python_callable))


def own_text(function: Callable[..., Any], decorator: str) -> Code:
    """*function* without its decorators, to be shipped.

    :raises CodeError: it cannot run away from its file, or wants something of Airflow's context.
    """
    wanted = [name for name in inspect.signature(function).parameters if name in KNOWN_CONTEXT_KEYS]
    if wanted:
        raise CodeError(
            f"{function.__name__} takes {', '.join(wanted)} of Airflow's context, and @{decorator} runs it on the "
            "cluster.",
            f'Give the parameter another name and pass it "{{{{ {wanted[0]} }}}}".',
        )
    return find_code(function, f"@{decorator}", decorated=True)
