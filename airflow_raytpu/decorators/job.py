"""``@task.ray_tpu``: the decorated function runs on whole TPU slices, and its value is the task's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator

from airflow_raytpu.decorators._function import own_text, task_decorator
from airflow_raytpu.operators.job import RayTpuJobOperator

FACTS = "ray_tpu"
"""Key of the XCom that says on which slices it ran, and what it cost."""


class RayTpuDecoratedOperator(DecoratedOperator, RayTpuJobOperator):
    """The decorated function as a :class:`RayTpuJobOperator`, whose arguments are those of the decorator."""

    custom_operator_name = "@task.ray_tpu"
    template_fields: Sequence[str] = RayTpuJobOperator.template_fields
    template_fields_renderers: ClassVar[dict[str, str]] = RayTpuJobOperator.template_fields_renderers
    shallow_copy_attrs: Sequence[str] = ("python_callable",)
    # Whether the function is asynchronous is no matter here: it runs elsewhere.
    is_async = RayTpuJobOperator.is_async

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        program = own_text(python_callable, "task.ray_tpu")
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            kwargs_to_upstream={"run": program, "op_args": op_args, "op_kwargs": op_kwargs},
            **kwargs,
        )

    async def aexecute(self, context: Any) -> Any:
        result = await super().aexecute(context)
        await asyncio.to_thread(self._keep, context, result)
        return result["value"]

    def finish(self, context: Any, event: Mapping[str, Any]) -> Any:
        result = super().finish(context, event)
        self._keep(context, result)
        return result["value"]

    def _keep(self, context: Any, result: Mapping[str, Any]) -> None:
        context["ti"].xcom_push(key=FACTS, value={name: each for name, each in result.items() if name != "value"})


def ray_tpu_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """``@task.ray_tpu(slice="v6e:4x4", per_host=True)``: takes what :class:`RayTpuJobOperator` takes, but ``run``."""
    return task_decorator(RayTpuDecoratedOperator, python_callable, multiple_outputs, kwargs)
