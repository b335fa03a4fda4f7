"""A loss inside one try: what the place took away begins again, and Airflow's ``retries`` are left to the author."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.model.errors import PathError, PlaceError
from airflow_raytpu.model.policies import RetryBudget
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.spent import FRUITLESS, after_loss
from airflow_raytpu.model.verdict import Verdict
from airflow_raytpu.operators import _metrics
from airflow_raytpu.storage import attempts


def begins(request: RayRequest, verdict: Verdict, budget: RetryBudget, generation: str, log: Any) -> bool:
    """Whether another attempt begins after *verdict*, in the same try. If so, *request* is used up.

    It does where the place lost the work, as long as *budget* has evictions left and ``total`` is not over. Three
    attempts in a row that were lost before they held a slice are no accident. A cluster that others share is theirs,
    too, and is not begun again.

    :param generation: as :mod:`airflow_raytpu.storage.attempts` has it.
    """
    if not verdict.again or request.shared:
        return False
    now = time.time()
    spent = after_loss(request.arguments, attempts.progress_of(request), verdict.message.splitlines()[0])
    if spent.evictions > budget.evictions or spent.fruitless >= FRUITLESS or now >= request.limits.total_until:
        return False
    attempts.release(request, generation)
    _metrics.tell(request, verdict, now)
    attempts.lose(request, generation, spent)
    log.warning(
        "Attempt %d (%s) was lost: %s\n%d of %d evictions used; beginning again.",
        request.identity.attempt,
        request.name,
        verdict.message,
        spent.evictions,
        budget.evictions,
    )
    return True


async def bring_back(backend: Backend, cluster: Mapping[str, Any] | None, log: Any) -> None:
    """Make the cluster that another task brought up anew, under its name, where it is gone; else nothing changes.

    :param cluster: what that task returned; nothing can be done where only a name is known.
    """
    asked = (cluster or {}).get("request")
    if not isinstance(asked, str):
        return
    try:
        await backend.ensure(await asyncio.to_thread(attempts.load, asked))
    except (PathError, PlaceError) as error:
        # Whether it is there after all, and what its absence means, is for the watch to say.
        log.warning("Cluster %s could not be seen to: %s", (cluster or {}).get("cluster"), error.cause)
