"""``IterJaxBatchInferenceOperator``: every row of a Parquet data set through a JAX function, on whole TPU slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from airflow_raytpu.links import RayDashboardLink
from airflow_raytpu.model.request import Kind
from airflow_raytpu.operators import _arguments
from airflow_raytpu.operators._arguments import Target
from airflow_raytpu.operators._lifecycle import RequestOperator
from airflow_raytpu.placement.plan import whole_number
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.storage import objects
from airflow_raytpu.storage.code import Code, find_code


class IterJaxBatchInferenceOperator(RequestOperator):
    """Run ``predict(model, batch)`` over Parquet files with Ray Data's ``iter_jax_batches``, on one JAX mesh.

    Returns ``{"rows_in", "rows_out", "rows_dropped", "parts", "parts_skipped", "rows_per_s", "output", "evictions",
    "causes"}``.

    :param predict: ``"module:function"``, or the function. It is given the model and a batch, a dict of column name to
        ``jax.Array``, and returns another such dict.
    :param load: turns the *model* address into what *predict* is given; left out, a checkpoint of ours is restored.
    :param model: storage address of the model, often ``train.output["checkpoint"]``.
    :param input: Parquet file, folder or glob in storage.
    :param output: folder in storage; one part for each input file, in its row order, with the predicted columns added.
    :param batch_size: rows of one global batch; a multiple of the slice's chips.
    :param ragged: what becomes of a last batch that is not full: ``"pad"``, ``"drop"`` or ``"raise"``.
    :param columns: input columns that *predict* is given; all where left out.
    :param cluster: a :class:`RayTpuClusterOperator` task, its output, or a cluster's name. Left out, the task has a
        cluster of its own and needs *slice*.
    :param slice: a :class:`TpuSlice`, or text such as ``"v6e:4x4"``; the cluster's where left out.
    """

    kind = Kind.INFERENCE
    announces = ("output", "rows_in", "rows_out", "rows_dropped")
    template_fields: Sequence[str] = (
        "cluster",
        "slice",
        "model",
        "input",
        "output_path",
        "batch_size",
        "ragged",
        "columns",
        "kuberay",
        "storage_path",
        "conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"cluster": "json", "columns": "json"}
    operator_extra_links = (RayDashboardLink(),)
    ui_color = "#d7f0d8"

    def __init__(
        self,
        *,
        predict: str | Callable[..., Any] | Code,
        input: str,  # noqa: A002 - the author's word
        output: str,
        batch_size: int | str,
        load: str | Callable[..., Any] | None = None,
        model: Any = None,
        ragged: str = "pad",
        columns: Sequence[str] | None = None,
        cluster: Any = None,
        slice: TpuSlice | str | None = None,  # noqa: A002 - the author's word
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.predict = find_code(predict, "predict")
        self.load = None if load is None else find_code(load, "load")
        self.model = model
        self.has_model = model is not None
        self.input = input
        # The operator's property "output" is its XComs.
        self.output_path = output
        self.batch_size = batch_size
        self.ragged = ragged
        self.columns = columns
        self.cluster = self.run_on(cluster)
        self.slice = None if slice is None else _arguments.slice_text(slice)
        self.refuse_early()

    def stated(self) -> dict[str, Any]:
        return {
            **_arguments.place(self.slice, self.cluster),
            **_arguments.literals(ragged=self.ragged),
            "addresses": _arguments.literals(
                storage_path=self.storage_path, model=self.model, input=self.input, output=self.output_path
            ),
            "batches": _arguments.literals(batch_size=self.batch_size),
        }

    def target(self) -> Target:
        return _arguments.target(self.slice, self.cluster)

    def codes(self) -> Sequence[Code]:
        return [code for code in (self.predict, self.load) if code is not None]

    def build(self, target: Target) -> dict[str, Any]:  # noqa: ARG002 - nothing here depends on the slice
        model = _arguments.uri(self.model, "model") if self.has_model else None
        source, output = _arguments.uri(self.input, "input"), _arguments.uri(self.output_path, "output")
        for address in filter(None, (model, source)):
            objects.check_readable(address)
        objects.check_writable(output)
        return {
            "predict": self.predict.entry,
            "load": self.load.entry if self.load else None,
            "model": model,
            "input": source,
            "output": output,
            "batch_size": whole_number(self.batch_size, "batch_size"),
            "ragged": self.ragged,
            "columns": list(self.columns) if self.columns is not None else None,
        }
