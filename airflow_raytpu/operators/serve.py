"""``RayServeDeployOperator``: a new version of a Ray Serve application, healthy or rolled back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from airflow_raytpu.links import EndpointLink, RayDashboardLink
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.policies import Rollout
from airflow_raytpu.model.request import Kind
from airflow_raytpu.operators import _arguments
from airflow_raytpu.operators._arguments import Target
from airflow_raytpu.operators._lifecycle import RequestOperator
from airflow_raytpu.placement.intent import Serving
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.storage import objects
from airflow_raytpu.storage.code import Code, find_code


class RayServeDeployOperator(RequestOperator):
    """Deploy ``build(model, **app_args)`` on a cluster; it replaces the version before once its smoke requests pass.

    Returns ``{"endpoint", "application", "version", "previous", "replicas", "smoke"}``.

    :param app: ``"module:function"``, or the function: ``build(model: str | None, **app_args)`` gives a Ray Serve
        application.
    :param app_args: further arguments of *app* (JSON, templated).
    :param model: storage address of the model, often ``train.output["checkpoint"]``.
    :param name: the application's name, the same for each version of it; the task's id where left out.
    :param route_prefix: path of the application below the cluster's endpoint.
    :param rollout: what a version must answer to count as healthy, and in what time.
    :param cluster: a :class:`RayTpuClusterOperator` task, its output, or a cluster's name.
    :param slice: a whole slice for the application's one replica, as :class:`TpuSlice` or text such as ``"v6e:4x4"``;
        *app* takes it with :mod:`airflow_raytpu.runtime.replicas`. Left out, replicas are placed as *app* says.
    """

    kind = Kind.SERVE
    template_fields: Sequence[str] = (
        "cluster",
        "slice",
        "app_args",
        "model",
        "name",
        "route_prefix",
        "storage_path",
        "conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"cluster": "json", "app_args": "json"}
    operator_extra_links = (EndpointLink(), RayDashboardLink())
    ui_color = "#e8d9f7"

    def __init__(
        self,
        *,
        app: str | Callable[..., Any],
        cluster: Any = None,
        slice: TpuSlice | str | None = None,  # noqa: A002 - the author's word
        app_args: Mapping[str, Any] | None = None,
        model: Any = None,
        name: str | None = None,
        route_prefix: str = "/",
        rollout: Rollout | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.app = find_code(app, "app")
        self.app_args = dict(app_args or {})
        self.model = model
        self.has_model = model is not None
        self.name = name or self.task_id
        self.route_prefix = route_prefix
        self.rollout = rollout or Rollout()
        self.cluster = self.run_on(cluster)
        self.slice = None if slice is None else _arguments.slice_text(slice)
        self.refuse_early()

    def stated(self) -> dict[str, Any]:
        return {
            **_arguments.place(self.slice, self.cluster, own=False),
            "addresses": _arguments.literals(storage_path=self.storage_path, model=self.model),
            "serving": Serving(
                smoke=len(self.rollout.smoke),
                deadline_s=self.rollout.deadline.total_seconds(),
                **_arguments.literals(route_prefix=self.route_prefix),
            ),
        }

    def target(self) -> Target:
        return _arguments.target(self.slice, self.cluster)

    def codes(self) -> Sequence[Code]:
        return [self.app]

    def build(self, target: Target) -> dict[str, Any]:  # noqa: ARG002 - nothing here depends on the slice
        model = _arguments.uri(self.model, "model") if self.has_model else None
        if model is not None:
            objects.check_readable(model)
        return {
            "app": self.app.entry,
            "app_args": self.app_args,
            "model": model,
            "name": self.name,
            "route_prefix": self.route_prefix,
            "replica": _one_slice(self.slice) if self.slice else None,
            "rollout": self.rollout.to_dict(),
        }


def _one_slice(text: str) -> str:
    """:raises RequestError: it is not one whole slice."""
    asked = TpuSlice.parse(text)
    if asked.num_slices > 1 or asked.part_of:
        raise RequestError(
            f"A replica runs on one whole slice, and {text} is asked for.",
            "Give one slice, or leave slice out and place replicas in the application itself.",
        )
    return str(asked)
