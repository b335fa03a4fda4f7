"""``RayTpuClusterOperator`` brings up a Ray cluster on TPU slices for other tasks; its teardown gives it back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseAsyncOperator, BaseOperator, XComArg
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_raytpu.hooks.raytpu import RayTpuHook, setting
from airflow_raytpu.links import RayDashboardLink
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import ClusterError, RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.operators import _arguments
from airflow_raytpu.operators._arguments import Target
from airflow_raytpu.operators._lifecycle import RequestOperator
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.storage import attempts, objects
from airflow_raytpu.triggers.capacity import MIN_IDLE

_GONE_WITHIN = timedelta(minutes=10)


class RayTpuClusterOperator(RequestOperator):
    """Bring up a Ray cluster on TPU slices, for the tasks that name it as their ``cluster``. A setup task.

    The cluster is given back by :meth:`teardown`, or when Airflow has not looked at it for *ttl*. A task that runs on
    it looks at it all the time; give *ttl* the length of the longest pause between two such tasks.

    A task on it that finds it gone makes it anew, and goes on. Returns ``{"cluster", "slice", "address", "dashboard",
    "endpoint", "slices", "request"}``.

    :param slice: a :class:`TpuSlice`, or text such as ``"v6e:4x4"``.
    :param name: share the cluster with every task of this Airflow deployment that gives the same name, in any run of
        any DAG: the first one brings it up, the others find it, and it goes when nobody has looked at it for *ttl*.
        :meth:`teardown` leaves it alone. Left out, the cluster is this run's own.
    :param min_idle_slices: the task is done only when so many of the slices are whole and held by nobody, and fails
        when they are not within ``slice_wait``. A cluster that others work on is left to its *ttl* then.
    """

    kind = Kind.CLUSTER
    template_fields: Sequence[str] = ("slice", "name", "kuberay", "storage_path", "conn_id")
    operator_extra_links = (RayDashboardLink(),)
    ui_color = "#d2e3fc"

    def __init__(
        self,
        *,
        slice: TpuSlice | str,  # noqa: A002 - the author's word
        name: str | None = None,
        min_idle_slices: int | None = None,
        deadlines: Deadlines | None = None,
        ttl: timedelta = timedelta(minutes=5),
        **kwargs: Any,
    ) -> None:
        super().__init__(deadlines=deadlines, ttl=ttl, **kwargs)
        self.name = name
        self.shared = name is not None
        self.min_idle_slices = min_idle_slices
        self.slice = _arguments.slice_text(slice)
        self.is_setup = True
        if _arguments.is_literal(name):
            self._check_name()
        self._users: list[BaseOperator] = []
        self._teardown: RayTpuClusterDeleteOperator | None = None
        self.refuse_early()
        if _arguments.is_literal(self.slice):
            self._check_idle(TpuSlice.parse(self.slice))

    def stated(self) -> dict[str, Any]:
        return {
            **_arguments.place(self.slice, None),
            "addresses": _arguments.literals(storage_path=self.storage_path),
        }

    def identity(self, own: Identity) -> Identity:
        if not self.shared:
            return own
        self._check_name()
        return Identity(deployment=own.deployment, dag_id="", task_id=str(self.name), run_id="")

    def target(self) -> Target:
        return Target(slice=str(TpuSlice.parse(self.slice)))

    def build(self, target: Target) -> dict[str, Any]:
        if self.min_idle_slices is None:
            return {}
        self._check_idle(TpuSlice.parse(target.slice))
        return {MIN_IDLE: self.min_idle_slices}

    def _check_name(self) -> None:
        if self.shared and not _arguments.is_name(self.name):
            # Not a cluster of this run's own instead: its teardown leaves a shared one alone.
            raise RequestError(
                f"name is {self.name!r}, which names no cluster.",
                "See what its template renders to, or leave name out for a cluster of this run's own.",
            )

    def _check_idle(self, tpu_slice: TpuSlice) -> None:
        wanted, most = self.min_idle_slices, tpu_slice.num_slices
        if wanted is not None and not 1 <= wanted <= most:
            raise RequestError(
                f"min_idle_slices is {wanted} of a cluster with {most} slice{'s' * (most > 1)} ({tpu_slice}).",
                f"Give a number from 1 to {most}, or ask for more slices: {tpu_slice.accelerator}:"
                f"{tpu_slice.topology}*{max(wanted, 2)}.",
            )
        least = self.kuberay.get("min_slices")
        if wanted is not None and self.shared and isinstance(least, int) and least < wanted:
            raise RequestError(
                f"min_idle_slices is {wanted}, and min_slices lets the autoscaler go down to {least} slices of a "
                "cluster that others share: nothing would bring the rest back.",
                f"Set min_slices to {wanted}, or leave min_idle_slices out: a job asks for the slice that it needs.",
            )

    def result(self, request: RayRequest, value: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "cluster": request.name,
            "slice": request.slice,
            "address": value.get("address"),
            "dashboard": value.get("dashboard"),
            "endpoint": value.get("endpoint"),
            "slices": value.get("slices", []),
            "request": request.outbox("request"),
        }

    def lend_to(self, user: BaseOperator) -> None:
        self._users.append(user)
        if self._teardown is not None:
            user >> self._teardown

    def teardown(
        self, *, after: BaseOperator | XComArg | Iterable[BaseOperator | XComArg] = (), **kwargs: Any
    ) -> RayTpuClusterDeleteOperator:
        """The task that gives the cluster back, after every task that names it, whatever became of them.

        Call it after the mapped tasks among them: those say nothing of themselves later.

        :param after: further tasks to wait for, such as one that asks the endpoint.
        """
        kwargs.setdefault("task_id", f"{self.label}_teardown")
        kwargs.setdefault("dag", self.dag)
        kwargs.setdefault("task_group", self.task_group)
        last = RayTpuClusterDeleteOperator(cluster=self, **kwargs)
        last.as_teardown(setups=self)
        for task in [
            *self._users,
            *self._mapped_users(),
            *([after] if isinstance(after, BaseOperator | XComArg) else after),
        ]:
            task >> last
        self._teardown = last
        return last

    def _mapped_users(self) -> list[MappedOperator]:
        # No constructor has run for these yet, so none has told of itself.
        mapped = [task for task in self.downstream_list if isinstance(task, MappedOperator)]
        return [task for task in mapped if self in _named_by(task)]


def _named_by(task: MappedOperator) -> list[Any]:
    """The tasks whose outputs are among the arguments of *task*."""
    arguments = [task.partial_kwargs, task._get_specified_expand_input().value]  # noqa: SLF001 - Airflow 3.3 has no other
    return [named for named, _ in XComArg.iter_xcom_references(arguments)]


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
        self.shared = cluster.shared
        self.storage_path = cluster.storage_path
        self.conn_id = cluster.conn_id
        self.within = within

    async def aexecute(self, context: Any) -> list[str]:
        try:
            place = await RayTpuHook(self.conn_id).aplace()
        except RequestError as error:
            raise AirflowFailException(str(error)) from error
        root = objects.normalise(self.storage_path).rstrip("/") if self.storage_path else place.storage
        requests = attempts.submitted(self._first(root, context["ti"])) if not self.shared else []
        if self.shared:
            self.log.info("The cluster is shared: it goes when nobody has looked at it for its time to live.")
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
