"""What an attempt took, told to Airflow's own metrics (statsd, OpenTelemetry) once, at its end.

The names are in ``docs/metrics.md``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk.observability import stats

from airflow_raytpu.model.elastic import Elastic
from airflow_raytpu.model.errors import BackendUnreachable
from airflow_raytpu.model.observation import Progress
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.spent import Spent, held_s
from airflow_raytpu.model.verdict import Phase, Verdict
from airflow_raytpu.placement.topology import TpuSlice, widest
from airflow_raytpu.storage import attempts

PREFIX = "raytpu"

log = logging.getLogger(__name__)


def tell(request: RayRequest, verdict: Verdict, now: float) -> None:
    """Tell how *request* ended, unless that was told before.

    :param now: when its end was seen, in seconds since the epoch.
    """
    try:
        if not attempts.first_to_tell(request):
            return
        progress = attempts.progress_of(request) if request.kind.is_job else None
    except BackendUnreachable as error:
        log.warning("The metrics of %s are not told: %s", request.name, error.cause)
        return
    identity = request.identity
    tags = {"dag_id": identity.dag_id, "task_id": identity.task_id, "kind": request.kind.value, "slice": request.slice}
    stats.incr(f"{PREFIX}.attempts", tags={**tags, "outcome": verdict.phase.name.lower(), "code": verdict.code})
    for name, seconds in durations(request, verdict, progress, now).items():
        stats.timing(f"{PREFIX}.{name}", timedelta(seconds=seconds), tags=tags)
    for name, count in counts(request, verdict, progress).items():
        stats.incr(f"{PREFIX}.{name}", count, tags=tags)


def durations(request: RayRequest, verdict: Verdict, progress: Progress | None, now: float) -> dict[str, float]:
    """Seconds by name, of what is known. Times by the cluster's clock are only compared with one another.

    The one that is not is the moment of the slice: clocks that differ make the wait longer or shorter by as much.
    """
    slice_at = progress.slice_at if progress else 0.0
    if not slice_at and not request.kind.is_job and verdict.phase is Phase.SUCCEEDED:
        slice_at = now
    if not slice_at:
        return {}
    # On a cluster that is there, one waits for others to be done; else for machines.
    found = {"provision" if request.owns_cluster else "queue": slice_at - request.limits.asked_at}
    if progress is not None:
        found["run"] = progress.at - slice_at
        if progress.first_at:
            found["start"] = progress.first_at - slice_at
    for part, seconds in (verdict.value.get("goodput") or {}).items():
        if part.endswith("_s"):
            found["lost" if part == "redone_s" else part.removesuffix("_s")] = float(seconds)
    return {name: max(0.0, seconds) for name, seconds in found.items()}


def counts(request: RayRequest, verdict: Verdict, progress: Progress | None) -> dict[str, int]:
    """How often, by name; what is 0 is left out."""
    value = verdict.value
    found = {name: value.get(name) for name in ("evictions", "failures")}
    found["chip_seconds"] = _chip_seconds(request, value, progress)
    return {name: round(count) for name, count in found.items() if isinstance(count, int | float) and round(count) > 0}


def _chip_seconds(request: RayRequest, value: Mapping[str, Any], progress: Progress | None) -> float:
    if not request.slice:
        return 0.0
    chips = widest(TpuSlice.parse(request.slice), Elastic.of(request.arguments)).total_chips
    if isinstance(hours := value.get("chip_hours"), int | float):
        held = hours * 3600 / chips
    else:
        held = held_s(request.arguments, progress) if progress else 0.0
    # What earlier attempts held was counted with them.
    return chips * max(0.0, held - Spent.of(request.arguments).held_s)
