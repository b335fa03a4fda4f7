"""``@task.jax_batch``: the decorated function predicts, one batch after another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator

from airflow_raytpu.decorators._function import own_text, task_decorator
from airflow_raytpu.model.errors import CodeError
from airflow_raytpu.operators.inference import IterJaxBatchInferenceOperator

# Where model and input are is what the function is called with.
_FIELDS = [name for name in IterJaxBatchInferenceOperator.template_fields if name not in ("model", "input")]


class JaxBatchDecoratedOperator(IterJaxBatchInferenceOperator, DecoratedOperator):
    """The decorated function as *predict* of an :class:`IterJaxBatchInferenceOperator`.

    The DAG calls it with two addresses, those of *model* and *input*. On the slice it is called with what is there: the
    model, and the rows of one batch.
    """

    custom_operator_name = "@task.jax_batch"
    template_fields: Sequence[str] = (*_FIELDS, "op_args", "op_kwargs")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **IterJaxBatchInferenceOperator.template_fields_renderers,
        "op_args": "py",
        "op_kwargs": "py",
    }
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        count = len(inspect.signature(python_callable).parameters)
        if count != 2:
            raise CodeError(
                f"{python_callable.__name__} predicts nothing: it takes {count} parameter{'s' * (count != 1)}.",
                "It takes two, the model and a batch: def predict(model, batch).",
            )
        model, rows = _addresses(python_callable, op_args, op_kwargs or {})
        super().__init__(
            predict=own_text(python_callable, "task.jax_batch"),
            model=model,
            input=rows,
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            **more,
        )

    def stated(self) -> dict[str, Any]:
        # By the time that the task runs, they are rendered.
        self.model, self.input = _addresses(self.python_callable, tuple(self.op_args), self.op_kwargs)
        return super().stated()


def _addresses(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    model, rows = bound.arguments.values()
    return model, rows


def jax_batch_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """``@task.jax_batch(slice="v6e:4x4", output=..., batch_size=1024)``.

    It takes what :class:`IterJaxBatchInferenceOperator` takes, but ``predict``, ``model`` and ``input``.
    """
    # As with the operator, predict(...)["output"] is to work.
    multiple = True if multiple_outputs is None else multiple_outputs
    return task_decorator(JaxBatchDecoratedOperator, python_callable, multiple, kwargs)
