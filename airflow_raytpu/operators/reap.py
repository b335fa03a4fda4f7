"""``RayTpuReapOperator``: maintenance, for a DAG of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseAsyncOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_raytpu.backends import reaping
from airflow_raytpu.hooks.raytpu import RayTpuHook, setting
from airflow_raytpu.model.errors import ClusterError, RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.orphans import Fate, Orphan

_AT_WORK = {
    "scheduled",
    "queued",
    "running",
    "restarting",
    "deferred",
    "up_for_retry",
    "up_for_reschedule",
}
_CLUSTERS = {"RayCluster", "cluster"}
"""Kinds that other tasks of the run may work on, too."""


class RayTpuReapOperator(BaseAsyncOperator):
    """Remove what this Airflow deployment left where a connection leads, and nobody looks after any more.

    Beyond what ``airflow-raytpu reap`` does, it asks Airflow: what a task that is at work, or on its way to it, has
    asked for stays. So does a run's cluster while any task of the run is at work.

    Returns a list of ``{"kind", "name", "owner", "silent_s", "why", "fate", "says", "uid"}``.

    :param older_than: what somebody has looked at within this time stays.
    :param dry_run: only look.
    """

    template_fields: Sequence[str] = ("conn_id",)
    ui_color = "#d2e3fc"

    def __init__(
        self,
        *,
        older_than: timedelta = timedelta(hours=1),
        dry_run: bool = False,
        conn_id: str = RayTpuHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.older_than = older_than
        self.only_look = dry_run
        self.conn_id = conn_id

    async def aexecute(self, context: Any) -> list[dict[str, Any]]:
        try:
            place = await RayTpuHook(self.conn_id).aplace()
        except RequestError as error:
            raise AirflowFailException(str(error)) from error

        async def spare(orphan: Orphan) -> str:
            return await _at_work(orphan, context["ti"])

        backend = place.open()
        try:
            found = await reaping.reap(
                backend, setting("deployment"), self.older_than.total_seconds(), dry_run=self.only_look, spare=spare
            )
        finally:
            await backend.close()
        now = time.time()
        for each in found:
            self.log.info("%s", each.in_words(now))
        left = [each for each in found if each.fate is Fate.RESISTS]
        if left:
            raise ClusterError(
                f"{len(left)} of {len(found)} do not go: {'; '.join(each.in_words(now) for each in left)}",
                "The log has them all; the next run tries again.",
            )
        return [each.to_dict(now) for each in found]


async def _at_work(orphan: Orphan, ti: Any) -> str:
    """Why Airflow still needs *orphan*; empty where it does not. Its silence is no leave to remove anything."""
    owner = orphan.owner
    if not owner.dag_id:
        return ""  # everybody's: only signs of life tell
    try:
        states = await asyncio.to_thread(_states, owner)
    except Exception as error:  # noqa: BLE001 - whatever keeps Airflow's server from answering
        return f"Airflow does not say what is at work: {error!r}"
    me = _key(ti.task_id, ti.map_index) if (ti.dag_id, ti.run_id) == (owner.dag_id, owner.run_id) else ""
    asked = set(states) - {me} if orphan.kind in _CLUSTERS else {_key(owner.task_id, owner.map_index)}
    busy = sorted(f"{task} is {states[task]}" for task in asked if states.get(task) in _AT_WORK)
    return f"Airflow has it at work: {', '.join(busy)}" if busy else ""


def _states(owner: Identity) -> dict[str, str]:
    """States of the tasks in the owner's run."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    found = RuntimeTaskInstance.get_task_states(dag_id=owner.dag_id, run_ids=[owner.run_id]).get(owner.run_id) or {}
    return {task: str(getattr(state, "value", state)) for task, state in found.items() if state}


def _key(task_id: str, map_index: int | None) -> str:
    """As Airflow answers: the map index behind the id of a mapped task, and of no other."""
    return task_id if map_index is None or map_index < 0 else f"{task_id}_{map_index}"
