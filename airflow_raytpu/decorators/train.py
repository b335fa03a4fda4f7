"""``@task.jax_train``: the decorated function is the train loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator

from airflow_raytpu.decorators._function import own_text, task_decorator
from airflow_raytpu.model.errors import CodeError, RequestError
from airflow_raytpu.operators._arguments import is_literal
from airflow_raytpu.operators.train import JaxTrainerOperator

# The config is what the function is called with.
_FIELDS = [name for name in JaxTrainerOperator.template_fields if name != "train_loop_config"]


class JaxTrainDecoratedOperator(JaxTrainerOperator, DecoratedOperator):
    """The decorated function as the loop of a :class:`JaxTrainerOperator`; what it is called with is its config."""

    custom_operator_name = "@task.jax_train"
    template_fields: Sequence[str] = (*_FIELDS, "op_args", "op_kwargs")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "cluster": "json",
        "datasets": "json",
        "op_args": "py",
        "op_kwargs": "py",
    }
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    def __init__(self, *, python_callable: Callable[..., Any], **more: Any) -> None:
        if len(inspect.signature(python_callable).parameters) != 1:
            raise CodeError(
                f"{python_callable.__name__} is no train loop: it takes "
                f"{len(inspect.signature(python_callable).parameters)} parameters.",
                "A train loop takes one, the config: def loop(config).",
            )
        loop = own_text(python_callable, "task.jax_train")
        super().__init__(train_loop=loop, python_callable=python_callable, **more)

    def stated(self) -> dict[str, Any]:
        # The config is known as far as the arguments are: less when the DAG is parsed, all once they are rendered.
        (config,) = [*self.op_args, *self.op_kwargs.values()] or [{}]
        if isinstance(config, Mapping):
            self.train_loop_config = dict(config)
        elif is_literal(config):
            raise RequestError(
                f"The config of {self.task_id} is a {type(config).__name__}.", 'Call it with a dict: {"steps": 100}.'
            )
        return super().stated()


def jax_train_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """``@task.jax_train(slice="v6e:4x4")``: takes what :class:`JaxTrainerOperator` takes, but ``train_loop``."""
    # As with the operator, loop(...)["checkpoint"] is to work.
    multiple = True if multiple_outputs is None else multiple_outputs
    return task_decorator(JaxTrainDecoratedOperator, python_callable, multiple, kwargs)
