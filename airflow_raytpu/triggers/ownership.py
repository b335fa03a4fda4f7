"""Whether remote work may be stopped: only by its owner, and only when its task really ended.

Airflow 3.3.2 calls ``on_kill`` in more cases than a user's wish: on a worker whose task was reset as an orphan, while
the next try already watches the same job, and in a triggerer that lost touch, while another one watches.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.verdict import judge
from airflow_raytpu.storage import attempts

_GOES_ON = {"scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule"}


async def may_stop(ti: Any, request: RayRequest, log: Any) -> bool:
    """Whether the try *ti*, on a worker, was ended for good and still owns *request*; else *log* is told why not."""
    state = await task_state(ti)
    if state in _GOES_ON:
        log.info("%s is left running: Airflow has the task as %s.", request.name, state)
        return False
    return await _is_owner(ti, request, state, log)


async def may_stop_deferred(ti: Any, request: RayRequest, backend: Backend, log: Any) -> bool:
    """As :func:`may_stop`, for a try that was deferred when it was ended."""
    state = await task_state(ti)
    if state == "deferred":
        log.info("%s is left running: another triggerer watches it.", request.name)
        return False
    if state is None or state in _GOES_ON:
        # Cleared, or ended by another triggerer whose event is on its way. Then there is nothing left to stop, and a
        # cluster that has just become ready must stay.
        seen = await backend.observe(request)
        if judge(seen, request.limits, time.time()).phase.final:
            log.info("%s is left alone: it has ended.", request.name)
            return False
    return await _is_owner(ti, request, state, log)


async def task_state(ti: Any) -> str | None:
    """What Airflow's server has for this task now; ``None`` for a task that was cleared or deleted."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    map_index = -1 if ti.map_index is None else ti.map_index
    states = await asyncio.to_thread(
        RuntimeTaskInstance.get_task_states,
        dag_id=ti.dag_id,
        task_ids=[ti.task_id],
        run_ids=[ti.run_id],
        map_index=map_index,
    )
    # Airflow puts the map index behind the id of a mapped task, and of no other.
    key = ti.task_id if map_index < 0 else f"{ti.task_id}_{map_index}"
    state = (states.get(ti.run_id) or {}).get(key)
    return str(getattr(state, "value", state)) if state else None


async def _is_owner(ti: Any, request: RayRequest, state: str | None, log: Any) -> bool:
    if not await asyncio.to_thread(attempts.is_owned_by, request, str(ti.id)):
        log.info("%s is left running: this try no longer looks after it.", request.name)
        return False
    log.info("Stopping %s: Airflow has the task as %s.", request.name, state or "cleared or deleted")
    return True
