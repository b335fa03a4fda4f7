"""Whether remote work may be stopped: only by its owner, and only when its task really ended.

Airflow 3.3.2 calls ``on_kill`` in more cases than a user's wish: on a worker whose task was reset as an orphan, while
the next try already watches the same job, and in a triggerer that lost touch, while another one watches. And not in
every case: the trigger of a task that was cleared goes on, and is started again when it ends, as long as the task waits
for its upstream (``Trigger.clean_unused`` compares a state that is NULL). So a trigger looks itself, too.
"""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.verdict import judge
from airflow_raytpu.storage import attempts

LOOK_EVERY_S = 30.0
"""Seconds between two questions to Airflow's server, so that work of a task that is gone ends within a minute."""

_CONFIRM_S = 3.0
TO_BE_DONE_AGAIN = ""
"""A task that is there and has no state. Clearing one that runs gives it a state, so on a worker this is what Airflow
resets as an orphan's: the next try takes the work over, or ends it where it was asked for anew meanwhile."""

_GOES_ON = {"scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule"}


async def may_stop(ti: Any, request: RayRequest, log: Any) -> bool:
    """Whether the try *ti*, on a worker, was ended for good and still owns *request*; else *log* is told why not."""
    state = await task_state(ti)
    if state in _GOES_ON or state == TO_BE_DONE_AGAIN:
        log.info("%s is left running: Airflow has the task as %s.", request.name, state or "to be done again")
        return False
    return await _is_owner(ti, request, state, log)


async def may_stop_deferred(ti: Any, request: RayRequest, backend: Backend, log: Any) -> bool:
    """As :func:`may_stop`, for a try that was deferred when it was ended."""
    state = await task_state(ti)
    if state == "deferred":
        log.info("%s is left running: another triggerer watches it.", request.name)
        return False
    if not state or state in _GOES_ON:
        # Cleared, or ended by another triggerer whose event is on its way. Then there is nothing left to stop, and a
        # cluster that has just become ready must stay.
        # What is only late has not ended: at the time when it was asked for, no deadline was over by any clock.
        seen = await backend.observe(request)
        if judge(seen, request.limits, request.limits.asked_at).phase.final:
            log.info("%s is left alone: it has ended.", request.name)
            return False
    return await _is_owner(ti, request, state, log)


async def is_in_charge(ti: Any, request: RayRequest, log: Any) -> bool:
    """Whether a trigger that begins now is the one to watch *request*, and not one that Airflow forgot to end."""
    if ti is None or await asyncio.to_thread(attempts.is_owned_by, request, str(ti.id)):
        return True
    log.info("%s is not watched here: this try no longer looks after it.", request.name)
    return False


async def until_taken_away(ti: Any, log: Any) -> None:
    """Returns once Airflow's server has the task neither at work nor on its way to it, seen twice."""
    seen_gone = False
    while True:
        await asyncio.sleep(_CONFIRM_S if seen_gone else LOOK_EVERY_S)
        try:
            gone = ti is not None and await task_state(ti) not in _GOES_ON
        except Exception as error:  # noqa: BLE001 - Airflow's server in trouble says nothing about the task
            log.debug("Airflow does not say what became of the task: %r", error)
            continue
        if gone and seen_gone:
            return
        seen_gone = gone


async def task_state(ti: Any) -> str | None:
    """What Airflow's server has for this task now: ``None`` where it was deleted, or :data:`TO_BE_DONE_AGAIN`."""
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
    found = states.get(ti.run_id) or {}
    if key not in found:
        return None
    state = found[key] or TO_BE_DONE_AGAIN
    return str(getattr(state, "value", state))


async def _is_owner(ti: Any, request: RayRequest, state: str | None, log: Any) -> bool:
    if not await asyncio.to_thread(attempts.is_owned_by, request, str(ti.id)):
        log.info("%s is left running: this try no longer looks after it.", request.name)
        return False
    log.info("Stopping %s: Airflow has the task as %s.", request.name, state or "cleared or deleted")
    return True
