"""``JaxTrainerOperator``: a plain Ray Train loop on whole TPU slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import TaskInstanceState

from airflow_raytpu.links import CheckpointLink, RayDashboardLink
from airflow_raytpu.model.policies import CheckpointPolicy, RetryBudget
from airflow_raytpu.model.request import Kind
from airflow_raytpu.operators import _arguments
from airflow_raytpu.operators._arguments import Target
from airflow_raytpu.operators._lifecycle import RequestOperator
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.storage import imports, objects
from airflow_raytpu.storage.code import Code, find_code

PREVIOUS_RUN = "previous_run"


class JaxTrainerOperator(RequestOperator):
    """Run ``train_loop(config)`` with Ray Train on every host of a TPU slice, as one JAX mesh.

    Returns ``{"step", "metrics", "checkpoint", "resumed_from", "chip_hours", "evictions", "failures", "processes",
    "devices", "best_step", "best_checkpoint", "warm_start"}``; ``train.output["checkpoint"]`` is the last checkpoint's
    URI.

    :param train_loop: ``"module:function"``, or the function. It takes the config and imports jax inside.
    :param train_loop_config: what the loop is given (JSON, templated). A ``{{ params.steps }}`` in it is a number in a
        DAG with ``render_template_as_native_obj=True``, and text in any other. A ``global_batch_size`` in it is checked
        against the slice.
    :param cluster: a :class:`RayTpuClusterOperator` task, its output, or a cluster's name. Left out, the task has a
        cluster of its own and needs *slice*.
    :param slice: a :class:`TpuSlice`, or text such as ``"v6e:4x4"``; the cluster's where left out.
    :param datasets: name to storage address of the input.
    :param checkpoint: when to save and what to keep.
    :param warm_start: a checkpoint whose state a fresh run begins with, at step 0: its URI, another task's output, or
        ``"previous_run"`` for the newest checkpoint of this task in the last DAG run before this one in which it
        succeeded; the first run then begins without. Once the run has a checkpoint of its own, that one counts.
    :param on_nan: ``"stop"`` fails the task when the metric ``loss`` is NaN or infinite, before it is saved;
        ``"ignore"`` goes on.
    :param retry_budget: how often to begin again inside one try.
    :param resume: ``"auto"`` goes on from the last checkpoint of the same DAG run; ``"never"`` starts afresh.
    """

    kind = Kind.TRAIN
    announces = ("checkpoint", "step", "metrics", "best_checkpoint", "best_step")
    template_fields: Sequence[str] = (
        "cluster",
        "slice",
        "train_loop_config",
        "datasets",
        "resume",
        "warm_start",
        "on_nan",
        "kuberay",
        "storage_path",
        "conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "train_loop_config": "json",
        "datasets": "json",
        "cluster": "json",
    }
    operator_extra_links = (RayDashboardLink(), CheckpointLink())
    ui_color = "#fde3c8"

    def __init__(
        self,
        *,
        train_loop: str | Callable[..., Any] | Code,
        train_loop_config: Mapping[str, Any] | None = None,
        cluster: Any = None,
        slice: TpuSlice | str | None = None,  # noqa: A002 - the author's word
        datasets: Mapping[str, str] | None = None,
        checkpoint: CheckpointPolicy | None = None,
        retry_budget: RetryBudget | None = None,
        resume: str = "auto",
        warm_start: Any = None,
        on_nan: str = "stop",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.code = find_code(train_loop, "train_loop")
        self.train_loop_config = dict(train_loop_config or {})
        self.cluster = self.run_on(cluster)
        self.slice = None if slice is None else _arguments.slice_text(slice)
        self.datasets = dict(datasets or {})
        self.checkpoint = checkpoint or CheckpointPolicy()
        self.retry_budget = retry_budget or RetryBudget()
        self.resume = resume
        self.warm_start = warm_start
        self.on_nan = on_nan
        self._warm = warm_start is not None
        self._earlier = ""
        self.refuse_early()

    async def aexecute(self, context: Any) -> dict[str, Any]:
        if self.warm_start == PREVIOUS_RUN:
            self._earlier = await asyncio.to_thread(_earlier_run, context["ti"])
            if not self._earlier:
                self.log.info("There is no earlier run in which %s succeeded: a fresh state.", self.task_id)
        return await super().aexecute(context)

    def stated(self) -> dict[str, Any]:
        return {
            **_arguments.place(self.slice, self.cluster),
            **_arguments.literals(resume=self.resume, on_nan=self.on_nan),
            "jax_at_top": imports.at_top(self.code, "jax"),
            "addresses": _arguments.literals(
                storage_path=self.storage_path,
                warm_start=None if self.warm_start == PREVIOUS_RUN else self.warm_start,
                **{f"datasets.{name}": each for name, each in self.datasets.items()},
            ),
            "batches": _arguments.literals(global_batch_size=self.train_loop_config.get("global_batch_size")),
        }

    def target(self) -> Target:
        return _arguments.target(self.slice, self.cluster)

    def codes(self) -> Sequence[Code]:
        return [self.code]

    def build(self, target: Target) -> dict[str, Any]:  # noqa: ARG002 - nothing here depends on the slice
        datasets = {name: _arguments.uri(address, f"datasets[{name!r}]") for name, address in self.datasets.items()}
        for address in datasets.values():
            objects.check_readable(address)
        return {
            "train_loop": self.code.entry,
            "train_loop_config": self.train_loop_config,
            "datasets": datasets,
            "checkpoint": self.checkpoint.to_dict(),
            "failures": self.retry_budget.failures,
            "evictions": self.retry_budget.evictions,
            "resume": self.resume,
            "on_nan": self.on_nan,
            **self._begin(),
        }

    def _begin(self) -> dict[str, Any]:
        """Where a fresh run has its state from."""
        if self.warm_start == PREVIOUS_RUN:
            return {"warm_start": "", "warm_start_run": self._earlier}
        if not self._warm:
            return {"warm_start": "", "warm_start_run": ""}
        address = _arguments.uri(self.warm_start, "warm_start").rstrip("/")
        objects.check_readable(address)
        return {"warm_start": address, "warm_start_run": ""}


def _earlier_run(ti: Any) -> str:
    """The run id of the last run before this one in which the task succeeded, empty where there is none."""
    found = ti.get_previous_ti(state=TaskInstanceState.SUCCESS, map_index=-1 if ti.map_index is None else ti.map_index)
    return found.run_id if found is not None else ""
