"""Every row of the catalogue is read, planned and checked in well under a millisecond."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

from airflow_raytpu.model.request import Kind
from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.intent import Intent
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.preflight import preflight
from airflow_raytpu.placement.topology import TpuSlice
from bench.measure import Result, a_a_ratio, times

_ROUNDS = 200
_GOAL_MS = 1.0


def _plan(text: str) -> object:
    planned = plan(TpuSlice.parse(text))
    return planned.to_dict(), planned.bundles


def _preflight(text: str) -> object:
    return preflight(Intent(kind=Kind.TRAIN, slice=text, batches={"batch_size": 1024}))


def measure() -> list[Result]:
    rows = [
        str(TpuSlice(row.generation.name, row.topology, machine_type=row.machine_type)) for row in catalogue.shapes()
    ]
    return [
        _slowest("plan", "parse and plan of the slowest catalogue row (median of its rounds)", _plan, rows),
        _slowest("preflight", "preflight of the slowest catalogue row (median of its rounds)", _preflight, rows),
    ]


def _slowest(name: str, what: str, work: Callable[[str], object], rows: list[str]) -> Result:
    found = [times(functools.partial(work, row), _ROUNDS) for row in rows]
    worst = max(found, key=statistics.median)
    return Result(
        id=f"{name}.slowest_row",
        what=f"{what}, of {len(rows)}",
        value=round(statistics.median(worst) * 1000, 4),
        unit="ms",
        goal=_GOAL_MS,
        a_a_ratio=a_a_ratio(worst),
        rounds=_ROUNDS,
    )
