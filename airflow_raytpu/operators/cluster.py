"""``RayTpuClusterOperator`` brings up a Ray cluster on TPU slices for other tasks; its teardown gives it back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseAsyncOperator, BaseOperator, XComArg
from airflow.sdk.exceptions import AirflowFailException

from airflow_raytpu.hooks.raytpu import RayTpuHook, setting
from airflow_raytpu.links import RayDashboardLink
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import ClusterError, RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.operators import _arguments
from airflow_raytpu.operators._lifecycle import RequestOperator, Target
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.storage import attempts, objects

_GONE_WITHIN = timedelta(minutes=10)


class RayTpuClusterOperator(RequestOperator):
    """Bring up a Ray cluster on TPU slices, for the tasks that name it as their ``cluster``. A setup task.

    The cluster is given back by :meth:`teardown`, or when Airflow has not looked at it for *ttl*. A task that runs on
    it looks at it all the time; give *ttl* the length of the longest pause between two such tasks.

    Returns ``{"cluster", "slice", "address", "dashboard", "endpoint", "slices"}``.

    :param slice: a :class:`TpuSlice`, or text such as ``"v6e:4x4"``.
    """

    kind = Kind.CLUSTER
    template_fields: Sequence[str] = ("slice", "storage_path", "conn_id")
    operator_extra_links = (RayDashboardLink(),)
    ui_color = "#d2e3fc"

    def __init__(
        self,
        *,
        slice: TpuSlice | str,  # noqa: A002 - the author's word
        deadlines: Deadlines | None = None,
        ttl: timedelta = timedelta(minutes=5),
        **kwargs: Any,
    ) -> None:
        super().__init__(deadlines=deadlines, ttl=ttl, **kwargs)
        self.slice = _arguments.slice_text(slice)
        self.is_setup = True
        self._users: list[RequestOperator] = []
        self._teardown: RayTpuClusterDeleteOperator | None = None

    def target(self) -> Target:
        return Target(slice=str(TpuSlice.parse(self.slice)))

    def build(self, target: Target) -> dict[str, Any]:  # noqa: ARG002 - nothing depends on it
        return {}

    def result(self, request: RayRequest, value: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "cluster": request.name,
            "slice": request.slice,
            "address": value.get("address"),
            "dashboard": value.get("dashboard"),
            "endpoint": value.get("endpoint"),
            "slices": value.get("slices", []),
        }

    def lend_to(self, user: RequestOperator) -> None:
        self._users.append(user)
        if self._teardown is not None:
            user >> self._teardown

    def teardown(
        self, *, after: BaseOperator | XComArg | Iterable[BaseOperator | XComArg] = (), **kwargs: Any
    ) -> RayTpuClusterDeleteOperator:
        """The task that gives the cluster back, after every task that names it, whatever became of them.

        :param after: further tasks to wait for, such as one that asks the endpoint.
        """
        kwargs.setdefault("task_id", f"{self.label}_teardown")
        kwargs.setdefault("dag", self.dag)
        kwargs.setdefault("task_group", self.task_group)
        last = RayTpuClusterDeleteOperator(cluster=self, **kwargs)
        last.as_teardown(setups=self)
        for task in [*self._users, *([after] if isinstance(after, BaseOperator | XComArg) else after)]:
            task >> last
        self._teardown = last
        return last


class RayTpuClusterDeleteOperator(BaseAsyncOperator):
    """Give a cluster back, and wait until it is gone. :meth:`RayTpuClusterOperator.teardown` makes one.

    It needs nothing from the cluster's task, so it works where that failed half-way.

    :param cluster: the task that brought the cluster up.
    :param within: how long it may take to go.
    """

    template_fields: Sequence[str] = ("storage_path", "conn_id")
    ui_color = "#d2e3fc"

    def __init__(self, *, cluster: RayTpuClusterOperator, within: timedelta = _GONE_WITHIN, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster_task_id = cluster.task_id
        self.storage_path = cluster.storage_path
        self.conn_id = cluster.conn_id
        self.within = within

    async def aexecute(self, context: Any) -> list[str]:
        try:
            place = await RayTpuHook(self.conn_id).aplace()
        except RequestError as error:
            raise AirflowFailException(str(error)) from error
        root = objects.normalise(self.storage_path).rstrip("/") if self.storage_path else place.storage
        requests = attempts.submitted(self._first(root, context["ti"]))
        backend = place.open()
        try:
            async with asyncio.timeout(self.within.total_seconds()):
                for request in requests:
                    await backend.delete(request)
                    self.log.info("Cluster %s is gone.", request.name)
        except TimeoutError as error:
            raise ClusterError(
                f"The cluster was not gone within {self.within}.", "Raise within; its time to live ends it in any case."
            ) from error
        finally:
            await backend.close()
        return [request.name for request in requests]

    def _first(self, root: str, ti: Any) -> RayRequest:
        """The cluster task's first attempt, as far as its outbox needs it."""
        identity = Identity(
            deployment=setting("deployment"),
            dag_id=ti.dag_id,
            task_id=self.cluster_task_id,
            run_id=ti.run_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
        )
        storage = f"{root}/{identity.storage_path()}"
        return RayRequest(identity=identity, kind=Kind.CLUSTER, slice="", storage=storage, limits=Deadlines().since(0))
