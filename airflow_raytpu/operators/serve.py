"""``RayServeDeployOperator``: a new version of a Ray Serve application, healthy or rolled back; and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from airflow.sdk import BaseAsyncOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_raytpu.hooks.raytpu import Place, RayTpuHook, setting
from airflow_raytpu.links import EndpointLink, RayDashboardLink
from airflow_raytpu.model import application
from airflow_raytpu.model.errors import BackendUnreachable, ClusterError, RequestError
from airflow_raytpu.model.policies import Rollout
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.verdict import Phase, Verdict
from airflow_raytpu.operators import _arguments
from airflow_raytpu.operators._arguments import Target
from airflow_raytpu.operators._lifecycle import RequestOperator
from airflow_raytpu.placement.intent import Serving
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.storage import objects
from airflow_raytpu.storage.code import Code, find_code


class RayServeDeployOperator(RequestOperator):
    """Deploy ``build(model, **app_args)``; it replaces the version before once its smoke requests pass.

    It serves on a *cluster*, or on a service of its own, which lives until :class:`RayServeDeleteOperator` deletes it:
    on Kubernetes a RayService, which brings the last good version back whatever restarts.

    Returns ``{"endpoint", "application", "version", "previous", "replicas", "smoke", "proven_at"}``.

    :param app: ``"module:function"``, or the function: ``build(model: str | None, **app_args)`` gives a Ray Serve
        application.
    :param app_args: further arguments of *app* (JSON, templated).
    :param model: storage address of the model, often ``train.output["checkpoint"]``.
    :param name: the application's name, the same for each version of it; the task's id where left out. A service of
        its own is called after it, for every run of every DAG of this Airflow deployment, so there it must be stated.
    :param route_prefix: path of the application below the cluster's endpoint.
    :param rollout: what a version must answer to count as healthy, and in what time.
    :param cluster: a :class:`RayTpuClusterOperator` task, its output, or a cluster's name. Left out, the application
        has a service of its own.
    :param slice: with *cluster*, a whole slice for the application's one replica, as :class:`TpuSlice` or text such as
        ``"v6e:4x4"``; *app* takes it with :mod:`airflow_raytpu.runtime.replicas`. Without *cluster*, the slices of the
        service. Replicas are then placed as *app* says, as they are where a *cluster* is given alone.
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
        if cluster is None and name is None:
            raise RequestError(
                "A service of its own is called after its application, and no name is given.",
                'Give name="digits", the same for every version, or a cluster to serve on.',
            )

    def stated(self) -> dict[str, Any]:
        return {
            **_arguments.place(self.slice, self.cluster),
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
        if not _arguments.is_name(self.name):
            raise RequestError(
                f"name is {self.name!r}, which names no application.", "See what its template renders to."
            )
        return self.asked(model)

    def asked(self, model: str | None) -> dict[str, Any]:
        """The request's arguments, as they are written."""
        return {
            "app": self.app.entry,
            "app_args": self.app_args,
            "model": model,
            "name": self.name,
            "route_prefix": self.route_prefix,
            "replica": _one_slice(self.slice) if self.slice and self.cluster is not None else None,
            "rollout": self.rollout.to_dict(),
        }

    async def _carry_out(self, context: Any) -> tuple[RayRequest, Place, Verdict]:
        request, place, verdict = await super()._carry_out(context)
        if verdict.phase is Phase.SUCCEEDED and application.has_service(request):
            await _look_once_more(request, place)
        return request, place, verdict


async def _look_once_more(request: RayRequest, place: Place) -> None:
    """To look at a rollout that succeeded makes its version the one that comes back, see ``Backend.observe``.

    A success that is handed over from a worker that was lost may not have been looked at.

    :raises BackendUnreachable: no answer until the request's time was over.
    """
    backend = place.open()
    try:
        while not (seen := await backend.observe(request)).reachable:
            if time.time() > request.limits.total_until:
                raise BackendUnreachable(f"The version serves, but that cannot be noted: {seen.detail}")
            await asyncio.sleep(float(setting("poll_interval")))
    finally:
        await backend.close()


def _one_slice(text: str) -> str:
    """:raises RequestError: it is not one whole slice."""
    asked = TpuSlice.parse(text)
    if asked.num_slices > 1 or asked.part_of:
        raise RequestError(
            f"A replica runs on one whole slice, and {text} is asked for.",
            "Give one slice, or leave slice out and place replicas in the application itself.",
        )
    return str(asked)


class RayServeDeleteOperator(BaseAsyncOperator):
    """Delete the service of an application, whatever it serves, and wait until it and its slices are gone.

    It is for applications that :class:`RayServeDeployOperator` serves without a ``cluster``. None there is no error.
    Returns the service's name.

    :param name: the application's.
    :param within: how long it may take to go.
    """

    template_fields: Sequence[str] = ("name", "conn_id")
    ui_color = "#e8d9f7"

    def __init__(
        self,
        *,
        name: str,
        conn_id: str = RayTpuHook.default_conn_name,
        within: timedelta = timedelta(minutes=10),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.conn_id = conn_id
        self.within = within

    async def aexecute(self, context: Any) -> str:  # noqa: ARG002 - Airflow's signature
        if not _arguments.is_name(self.name):
            raise AirflowFailException(f"name is {self.name!r}, which names no application.")
        service = application.service_called(setting("deployment"), self.name)
        try:
            backend = await RayTpuHook(self.conn_id).backend()
        except RequestError as error:
            raise AirflowFailException(str(error)) from error
        try:
            async with asyncio.timeout(self.within.total_seconds()):
                await backend.delete(service)
        except TimeoutError as error:
            raise ClusterError(f"Service {service.name} was not gone within {self.within}.", "Raise within.") from error
        finally:
            await backend.close()
        self.log.info("Service %s is gone.", service.name)
        return service.name
