"""``JaxTrainerOperator``: a plain Ray Train loop on whole TPU slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import TaskInstanceState

from airflow_raytpu.links import CheckpointLink, ProfileLink, RayDashboardLink
from airflow_raytpu.model.datasets import Dataset
from airflow_raytpu.model.elastic import ARGUMENT as ELASTIC
from airflow_raytpu.model.elastic import Elastic
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.policies import CheckpointPolicy, Profile, RetryBudget
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

    Returns ``{"step", "metrics", "checkpoint", "resumed_from", "chip_hours", "evictions", "failures", "causes",
    "held_s", "lost_s", "processes", "devices", "best_step", "best_checkpoint", "warm_start", "goodput", "series",
    "profile", "datasets", "resizes"}``; ``train.output["checkpoint"]`` is the last checkpoint's URI.

    :param train_loop: ``"module:function"``, or the function. It takes the config and imports jax inside.
    :param train_loop_config: what the loop is given (JSON, templated). A ``{{ params.steps }}`` in it is a number in a
        DAG with ``render_template_as_native_obj=True``, and text in any other. A ``global_batch_size`` in it is checked
        against the slice.
    :param argv: command-line words (templated), where *train_loop* is the ``main(argv)`` of a program, as MaxText's is:
        it is called with its own name and these, which are also ``sys.argv``, instead of a config.
    :param cluster: a :class:`RayTpuClusterOperator` task, its output, or a cluster's name. Left out, the task has a
        cluster of its own and needs *slice*.
    :param slice: a :class:`TpuSlice`, or text such as ``"v6e:4x4"``; the cluster's where left out.
    :param datasets: name to storage address (a file, a folder or a glob), or to a :class:`Dataset` that also says what
        becomes of rows that fill no equal part, which format and which columns. The loop has them as
        ``ray.train.get_dataset_shard(name)``, or by number from ``airflow_raytpu.runtime.data.batches(name, ...)``.
    :param checkpoint: when to save and what to keep.
    :param warm_start: a checkpoint whose state a fresh run begins with, at step 0: its URI, another task's output, or
        ``"previous_run"`` for the newest checkpoint of this task in the last DAG run before this one in which it
        succeeded, by logical date, or by time where an asset or a user began the run without one; the first run then
        begins without. Once the run has a checkpoint of its own, that one counts.
    :param on_nan: ``"stop"`` fails the task when the metric ``loss`` is NaN or infinite, before it is saved;
        ``"roll_back"`` goes back to a good checkpoint and begins again, as *retry_budget* allows failures; ``"ignore"``
        goes on.
    :param profiler: which steps to trace with JAX's profiler, once in a run, into storage.
    :param retry_budget: how often to begin again inside one try.
    :param elastic: ``(fewest, most)`` whole slices, of which *slice* says one: the most are asked for; when one is lost
        it goes on with those that are left, and at a checkpoint with more where more have come.
    :param resume: ``"auto"`` goes on from the last checkpoint of the same DAG run; ``"never"`` starts afresh.
    """

    kind = Kind.TRAIN
    announces = ("checkpoint", "step", "metrics", "best_checkpoint", "best_step")
    template_fields: Sequence[str] = (
        "cluster",
        "slice",
        "train_loop_config",
        "argv",
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
    operator_extra_links = (RayDashboardLink(), CheckpointLink(), ProfileLink())
    ui_color = "#fde3c8"

    def __init__(
        self,
        *,
        train_loop: str | Callable[..., Any] | Code,
        train_loop_config: Mapping[str, Any] | None = None,
        argv: Sequence[str] | None = None,
        cluster: Any = None,
        slice: TpuSlice | str | None = None,  # noqa: A002 - the author's word
        datasets: Mapping[str, str | Dataset | Mapping[str, Any]] | None = None,
        checkpoint: CheckpointPolicy | None = None,
        retry_budget: RetryBudget | None = None,
        elastic: Sequence[int] | None = None,
        resume: str = "auto",
        warm_start: Any = None,
        on_nan: str = "stop",
        profiler: Profile | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.code = find_code(train_loop, "train_loop")
        self.train_loop_config = dict(train_loop_config or {})
        self.argv = argv
        self.cluster = self.run_on(cluster)
        self.slice = None if slice is None else _arguments.slice_text(slice)
        self.datasets = {name: _arguments.dataset(each) for name, each in (datasets or {}).items()}
        self.checkpoint = checkpoint or CheckpointPolicy()
        self.retry_budget = retry_budget or RetryBudget()
        self.elastic = elastic
        self.resume = resume
        self.warm_start = warm_start
        self.on_nan = on_nan
        self.profiler = profiler
        self._warm = warm_start is not None
        self._earlier: dict[str, str] = {}
        if argv is not None and train_loop_config:
            raise RequestError(
                "A train loop is given argv or train_loop_config, and both are stated.", "Leave one of them out."
            )
        self.refuse_early()

    async def aexecute(self, context: Any) -> dict[str, Any]:
        if self.warm_start == PREVIOUS_RUN:
            self._earlier = await asyncio.to_thread(_earlier_run, context["ti"], context["dag_run"].logical_date)
            if not self._earlier:
                self.log.info("There is no earlier run in which %s succeeded: a fresh state.", self.task_id)
        return await super().aexecute(context)

    def stated(self) -> dict[str, Any]:
        return {
            **_arguments.place(self.slice, self.cluster),
            **_arguments.literals(resume=self.resume, on_nan=self.on_nan),
            "elastic": self.elastic,
            "not_json": _arguments.not_json(self.train_loop_config, "train_loop_config"),
            "failures": self.retry_budget.failures,
            "jax_at_top": imports.at_top(self.code, "jax"),
            "addresses": _arguments.literals(
                storage_path=self.storage_path,
                warm_start=None if self.warm_start == PREVIOUS_RUN else self.warm_start,
                **{f"datasets.{name}": _arguments.address(each) for name, each in self.datasets.items()},
            ),
            "batches": _arguments.literals(global_batch_size=self.train_loop_config.get("global_batch_size")),
        }

    def target(self) -> Target:
        return _arguments.widened(_arguments.target(self.slice, self.cluster), Elastic.read(self.elastic))

    def codes(self) -> Sequence[Code]:
        return [self.code]

    def build(self, target: Target) -> dict[str, Any]:  # noqa: ARG002 - nothing here depends on the slice
        named = [(name, each, f"datasets[{name!r}]") for name, each in self.datasets.items()]
        datasets = {name: _arguments.rendered_dataset(each, what) for name, each, what in named}
        for each in datasets.values():
            objects.check_readable(_arguments.address(each))
        return {
            "train_loop": self.code.entry,
            "train_loop_config": self.train_loop_config,
            "argv": None if self.argv is None else _arguments.words(self.argv, "argv"),
            "datasets": datasets,
            "checkpoint": self.checkpoint.to_dict(),
            "failures": self.retry_budget.failures,
            "evictions": self.retry_budget.evictions,
            "resume": self.resume,
            "on_nan": self.on_nan,
            "profiler": self.profiler.to_dict() if self.profiler else None,
            **({} if self.elastic is None else {ELASTIC: list(self.elastic)}),
            **self._begin(),
        }

    def _begin(self) -> dict[str, Any]:
        """Where a fresh run has its state from."""
        if self.warm_start == PREVIOUS_RUN:
            return {"warm_start": "", **self._earlier}
        if not self._warm:
            return {"warm_start": ""}
        address = _arguments.uri(self.warm_start, "warm_start").rstrip("/")
        objects.check_readable(address)
        return {"warm_start": address}


def _earlier_run(ti: Any, logical_date: Any) -> dict[str, str]:
    """Where the last run before this one in which the task succeeded has its checkpoints; empty where there is none."""
    map_index = -1 if ti.map_index is None else ti.map_index
    if logical_date is not None:
        found = ti.get_previous_ti(state=TaskInstanceState.SUCCESS, map_index=map_index)
        return {"warm_start_run": found.run_id} if found is not None else {}
    # Without a date of its own, Airflow would take any run for the one before (3.3). What earlier runs returned it does
    # sort by time; this run has returned nothing yet.
    value = ti.xcom_pull(include_prior_dates=True, map_indexes=map_index) or {}
    return {"warm_start_folder": str(value["checkpoint"]).rpartition("/")[0]} if value.get("checkpoint") else {}
