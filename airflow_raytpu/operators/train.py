"""``JaxTrainerOperator``: a plain Ray Train loop on whole TPU slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from airflow_raytpu.links import CheckpointLink, RayDashboardLink
from airflow_raytpu.model.policies import CheckpointPolicy, RetryBudget
from airflow_raytpu.model.request import Kind
from airflow_raytpu.operators import _arguments
from airflow_raytpu.operators._arguments import Target
from airflow_raytpu.operators._lifecycle import RequestOperator
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.storage import objects
from airflow_raytpu.storage.code import Code, find_code


class JaxTrainerOperator(RequestOperator):
    """Run ``train_loop(config)`` with Ray Train on every host of a TPU slice, as one JAX mesh.

    Returns ``{"step", "metrics", "checkpoint", "resumed_from", "chip_hours", "evictions", "failures", "processes",
    "devices"}``; ``train.output["checkpoint"]`` is the last checkpoint's URI.

    :param train_loop: ``"module:function"``, or the function. It takes the config and imports jax inside.
    :param train_loop_config: what the loop is given (JSON, templated). A ``{{ params.steps }}`` in it is a number in a
        DAG with ``render_template_as_native_obj=True``, and text in any other. A ``global_batch_size`` in it is checked
        against the slice.
    :param cluster: a :class:`RayTpuClusterOperator` task, its output, or a cluster's name. Left out, the task has a
        cluster of its own and needs *slice*.
    :param slice: a :class:`TpuSlice`, or text such as ``"v6e:4x4"``; the cluster's where left out.
    :param datasets: name to storage address of the input.
    :param checkpoint: when to save and what to keep.
    :param retry_budget: how often to begin again inside one try.
    :param resume: ``"auto"`` goes on from the last checkpoint of the same DAG run; ``"never"`` starts afresh.
    """

    kind = Kind.TRAIN
    template_fields: Sequence[str] = (
        "cluster",
        "slice",
        "train_loop_config",
        "datasets",
        "resume",
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
        self.refuse_early()

    def stated(self) -> dict[str, Any]:
        return {
            **_arguments.place(self.slice, self.cluster),
            **_arguments.literals(resume=self.resume),
            "addresses": _arguments.literals(
                storage_path=self.storage_path, **{f"datasets.{name}": each for name, each in self.datasets.items()}
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
            "checkpoint": {"every_steps": self.checkpoint.every_steps, "keep": self.checkpoint.keep},
            "failures": self.retry_budget.failures,
            "evictions": self.retry_budget.evictions,
            "resume": self.resume,
        }
