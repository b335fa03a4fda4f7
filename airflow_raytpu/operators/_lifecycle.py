"""The only flow: make the request, submit or adopt it, watch it from the triggerer or here, return or raise.

What differs between operators is said in :meth:`RequestOperator.build`, :meth:`RequestOperator.codes` and
:meth:`RequestOperator.result`; everything that can go wrong on the way is here, once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

from airflow.sdk import BaseAsyncOperator, BaseOperator, XComArg
from airflow.sdk.exceptions import AirflowFailException, TaskDeferralError, TaskDeferralTimeout

from airflow_raytpu import links
from airflow_raytpu.backends.base import Backend
from airflow_raytpu.hooks.raytpu import Place, RayTpuHook, setting
from airflow_raytpu.model.deadlines import Deadlines, Limits
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.policies import RetryBudget
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.verdict import Phase, Verdict
from airflow_raytpu.operators import _again, _arguments, _assets, _lineage, _metrics
from airflow_raytpu.operators._arguments import Target, supply
from airflow_raytpu.operators._killable import Killable
from airflow_raytpu.operators._mapped import Partial
from airflow_raytpu.placement.findings import Level
from airflow_raytpu.placement.intent import Intent
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.preflight import preflight, refuse
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.storage import attempts, objects, staging
from airflow_raytpu.storage.code import Code
from airflow_raytpu.triggers.watch import WatchTrigger
from airflow_raytpu.triggers.watching import Watch

_AIRFLOW_WAITS_LONGER = timedelta(minutes=2)
_LOGGED = {Level.WARNING: logging.WARNING, Level.NOTE: logging.INFO}


class RequestOperator(Killable, BaseAsyncOperator):
    """Base of the operators that carry out a request.

    :param storage_path: root for checkpoints and results: ``gs://`` or an absolute path that worker and cluster share.
        The connection's storage where left out.
    :param deadlines: how long to wait for what.
    :param ttl: how long a cluster outlives the last look that Airflow took at it.
    :param conn_id: connection of type ``raytpu``; with none defined, simulated slices on this machine.
    :param kuberay: for a cluster of this task's own on Kubernetes: options over those of the connection, as
        :class:`KubeRayOptions` or a mapping of its fields, such as ``{"provisioning": "spot"}``. Of the former only
        what differs from its defaults counts, so a default is put over the connection's own by a mapping alone.
    :param deferrable: wait in the triggerer, not in a worker slot.
    """

    kind: ClassVar[Kind]
    retry_budget = RetryBudget()
    announces: ClassVar[Sequence[str]] = ()

    def __init__(
        self,
        *,
        storage_path: str | None = None,
        deadlines: Deadlines | None = None,
        ttl: timedelta = timedelta(minutes=5),
        conn_id: str = RayTpuHook.default_conn_name,
        kuberay: KubeRayOptions | Mapping[str, Any] | None = None,
        deferrable: bool = True,
        multiple_outputs: bool = True,
        **kwargs: Any,
    ) -> None:
        # Each key of the returned value is an XCom of its own, so that task.output["checkpoint"] works.
        super().__init__(multiple_outputs=multiple_outputs, **kwargs)
        self.storage_path = storage_path
        self.deadlines = deadlines or Deadlines()
        self.ttl = ttl
        self.conn_id = conn_id
        self.kuberay = kuberay.to_dict() if isinstance(kuberay, KubeRayOptions) else dict(kuberay or {})
        self.deferrable = deferrable
        self.known_links: dict[str, str] = {}
        self._on_cluster = False
        self._done: tuple[RayRequest, dict[str, Any]] | None = None

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """As Airflow's own. A cluster's task is made its output, since Airflow sees no task among the arguments."""
        return Partial(super().partial(**outputs(kwargs)))

    def target(self) -> Target:
        """Where it runs. Called when the fields are rendered."""
        raise NotImplementedError

    def build(self, target: Target) -> dict[str, Any]:
        """The request's arguments, checked as far as Airflow's side can; called when the fields are rendered.

        :raises RequestError: it cannot work.
        """
        raise NotImplementedError

    def intent(self, options: Mapping[str, Any] | None = None) -> Intent:
        """What is known of the request so far, for :func:`preflight`: less at parse time, all when rendered.

        :param options: of the cluster it makes, where the connection was read.
        """
        timeout = self.execution_timeout
        return Intent(
            kind=self.kind,
            dag_id=self.dag_id,
            task_id=self.task_id,
            deadlines=self.deadlines,
            execution_timeout_s=timeout.total_seconds() if timeout else None,
            ttl_s=self.ttl.total_seconds(),
            supply=supply(self.kuberay if options is None else options),
            **self.stated(),
        )

    def limits(self, now: float) -> Limits:
        """The deadlines of a request made at *now* (seconds since the epoch)."""
        limits = self.deadlines.since(now)
        if self.execution_timeout:
            # Airflow's timeout ends the task without ending the work, so ours comes a little earlier.
            limit = self.execution_timeout.total_seconds()
            limits = replace(limits, total_s=min(limits.total_s, max(0.9 * limit, limit - 60)))
        return limits

    def stated(self) -> dict[str, Any]:
        """The fields of :meth:`intent` that differ between operators."""
        raise NotImplementedError

    def refuse_early(self) -> None:
        """Refuse literals that cannot work; called at the end of each constructor.

        Warnings wait for the run and for ``airflow-raytpu explain``: a DAG file is parsed every few seconds.

        :raises RequestError: the first error.
        """
        refuse(preflight(self.intent()))

    def codes(self) -> Sequence[Code]:
        """The author's code that it runs."""
        return ()

    def identity(self, own: Identity) -> Identity:
        """Whose request it is: this task's in this run, or something that other runs share."""
        return own

    def result(self, request: RayRequest, value: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - see clusters
        """What the task returns, from the value of the successful verdict."""
        return dict(value)

    def announced(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """What the events of its outlet assets say of the *value* that it returns."""
        return {name: value[name] for name in self.announces if value.get(name) is not None}

    def run_on(self, cluster: Any) -> Any:
        """*cluster* as its task's output, which makes it an upstream; its teardown waits for this task."""
        self._on_cluster = cluster is not None
        return lend(cluster, self)

    def lend_to(self, user: BaseOperator) -> None:
        """Called by each task that names this one as its cluster."""

    async def aexecute(self, context: Any) -> dict[str, Any]:
        while True:
            try:
                request, place, verdict = await self.unless_killed(self._carry_out(context), context)
            except RequestError as error:
                # What was asked for does not become right by asking again.
                raise AirflowFailException(str(error)) from error
            if not verdict.phase.final:
                self._defer(request, place)
            if not _again.begins(request, verdict, self.retry_budget, _generation(context), self.log):
                return self._conclude(request, verdict, context)

    def _defer(self, request: RayRequest, place: Place) -> NoReturn:
        self.defer(
            trigger=WatchTrigger(request.to_dict(), self.conn_id, stated=place.stated),
            method_name="finish",
            timeout=timedelta(seconds=max(0.0, request.limits.total_until - time.time())) + _AIRFLOW_WAITS_LONGER,
        )

    def finish(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Called with the trigger's event."""
        self.known_links.update(event["links"])
        request, verdict = attempts.load(event["request"]), Verdict.from_dict(event["verdict"])
        if _again.begins(request, verdict, self.retry_budget, _generation(context), self.log):
            return BaseAsyncOperator.execute(self, context)  # type: ignore[no-untyped-call,no-any-return]
        return self._conclude(request, verdict, context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout) as error:
            # The triggerer could not watch to the end. The remote work may be well: see to it from here.
            self.log.warning("The triggerer gave up (%s); this worker watches instead.", error)
            self.deferrable = False
            return BaseAsyncOperator.execute(self, context)  # type: ignore[no-untyped-call]

    async def _carry_out(self, context: Any) -> tuple[RayRequest, Place, Verdict]:
        """Submit or adopt, and watch: to the end, or only once where the triggerer takes over."""
        ti, generation = context["ti"], _generation(context)
        place = await RayTpuHook(self.conn_id).aplace()
        if not place.stated:
            self.log.info(
                "No connection %s: running on simulated slices on this machine (extra 'local').", self.conn_id
            )
        fresh, target = self._request(place, context)
        claim = attempts.Claim(request=fresh) if fresh.shared else attempts.claim(fresh, generation)
        backend = place.open()
        try:
            await self._clear_away(claim.stale, backend)
            await _again.bring_back(backend, target.facts, self.log)
            request = claim.request
            if claim.outcome is not None:
                self.log.info("%s had succeeded before Airflow was told; handing over its result.", request.name)
                return request, place, Verdict(phase=Phase.SUCCEEDED, message="", value=claim.outcome.value)
            if not claim.adopted:
                request = self._stage(request)
            self.holds(request, place)
            attempts.take(request, str(ti.id), generation)
            self.log.info("%s", _describe(request, adopted=claim.adopted))
            watch = Watch(
                backend,
                request,
                log=self.log,
                poll_s=float(setting("poll_interval")),
                publish=lambda known: self._publish(ti, known),
            )
            await watch.publish(links.of_cluster(target.facts or {}))
            if not self.deferrable:
                return request, place, await watch.run()
            verdict = await watch.look()
            return request, place, await watch.end(verdict) if verdict.phase.final else verdict
        finally:
            await backend.close()

    def _request(self, place: Place, context: Any) -> tuple[RayRequest, Target]:
        """The first attempt's request, checked before anything exists anywhere."""
        ti = context["ti"]
        root = objects.normalise(self.storage_path).rstrip("/") if self.storage_path else place.storage
        own = Identity(
            deployment=setting("deployment"),
            dag_id=ti.dag_id,
            task_id=ti.task_id,
            run_id=ti.run_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
        )
        storage = f"{root}/{own.storage_path()}"
        identity = self.identity(own)
        target = self.target()
        if self._on_cluster and target.cluster is None:
            # Not a cluster of its own instead: that is another task, and another bill.
            raise _arguments.no_cluster(None)
        options = self._options(place, target)
        self._refuse(options)
        arguments = self.build(target)
        objects.check_writable(storage)
        try:
            request = RayRequest(
                identity=identity,
                shared=identity is not own,
                kind=self.kind,
                slice=target.slice,
                storage=storage,
                limits=self.limits(time.time()),
                cluster=target.cluster,
                arguments=arguments,
                ttl_s=self.ttl.total_seconds(),
                options=options,
            )
        except (TypeError, ValueError) as error:
            raise RequestError(
                f"The arguments of {ti.task_id} are not JSON: {error}.", "Pass plain numbers, text, lists and dicts."
            ) from error
        return request, target

    def _options(self, place: Place, target: Target) -> dict[str, Any]:
        """How the cluster is made, where this task makes one."""
        if target.cluster is None:
            return place.options_of(self.kuberay)
        if self.kuberay:
            raise RequestError(
                f"kuberay is given to {self.task_id}, which runs on cluster {target.cluster} and makes none.",
                "Give it to the RayTpuClusterOperator.",
            )
        return {}

    def _refuse(self, options: Mapping[str, Any]) -> None:
        """Preflight, with everything rendered; what is no error is told to the log."""
        findings = preflight(self.intent(options))
        refuse(findings)
        for finding in findings:
            self.log.log(_LOGGED[finding.level], "%s", finding)

    def _stage(self, request: RayRequest) -> RayRequest:
        if not request.kind.is_job:
            return request
        root = request.storage.removesuffix("/" + request.identity.storage_path())
        return replace(request, code=staging.stage(self.codes(), root))

    async def _clear_away(self, stale: Sequence[tuple[RayRequest, str]], backend: Backend) -> None:
        for request, reason in stale:
            self.log.warning("Ending attempt %d (%s): %s", request.identity.attempt, request.name, reason)
            await backend.stop(request)
            attempts.use(request, "CLEARED")

    def _conclude(self, request: RayRequest, verdict: Verdict, context: Any) -> dict[str, Any]:
        """The end of an attempt, told to Airflow."""
        generation = _generation(context)
        attempts.release(request, generation)
        _metrics.tell(request, verdict, time.time())
        if verdict.phase is not Phase.SUCCEEDED:
            if not request.shared:
                attempts.use(request, verdict.phase.name)
            raise verdict.error()
        value = self.result(request, verdict.value)
        self._done = request, value
        _assets.announce(self.outlets, context, {"slice": request.slice, **self.announced(value)})
        self.known_links.update({**links.of_cluster(verdict.value), **links.of_result(value)})
        if request.kind.is_job:
            # A worker that dies from here on loses nothing: the mark carries the generation, and a retry in the same
            # generation is given this success again. A cluster is never used up; a retry adopts it while it lives.
            attempts.use(request, attempts.SUCCEEDED, generation)
        return value

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002 - Airflow's signature
        """What was read and written. Called by Airflow's OpenLineage provider alone."""
        return _lineage.lineage(*self._done) if self._done else None

    async def _publish(self, ti: Any, known: Mapping[str, str]) -> None:
        self.known_links.update(known)
        for key, value in known.items():
            # Not ti.axcom_push: what stands in for a worker in dag.test() does not know it (Airflow 3.3.2).
            await asyncio.to_thread(ti.xcom_push, key=key, value=value)


def lend(cluster: Any, user: BaseOperator) -> Any:
    """*cluster* as its task's output, which makes it an upstream of *user*; its teardown waits for *user*."""
    reference = outputs({"cluster": cluster})["cluster"]
    if isinstance(reference, XComArg):
        for task, _ in reference.iter_references():
            if isinstance(task, RequestOperator):
                task.lend_to(user)
    return reference


def outputs(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """*arguments* of a task, with a cluster's task in them as its output."""
    cluster = arguments.get("cluster")
    return {**arguments, "cluster": cluster.output} if isinstance(cluster, BaseOperator) else dict(arguments)


def _generation(context: Any) -> str:
    # Both change with a new wish of Airflow's and with nothing else: clearing a task raises max_tries, and a run that
    # is made anew or opened again starts at another time.
    return f"{context['dag_run'].start_date}/{context['ti'].max_tries}"


def _describe(request: RayRequest, *, adopted: bool) -> str:
    identity = request.identity
    where = f" on cluster {request.cluster}" if request.cluster else ""
    shape = ""
    if request.slice:
        tpu_slice = TpuSlice.parse(request.slice)
        shape = f" on {tpu_slice.describe()}, mesh {plan(tpu_slice).mesh}"
    verb = "adopted" if adopted else "submitted"
    return f"request {request.name} {verb} (attempt {identity.attempt} of run {identity.run_id}){where}{shape}"
