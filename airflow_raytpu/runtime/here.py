"""For the author's program: where it runs, and a way to say how far it is.

    from airflow_raytpu.runtime import here

Works in a program that ``RayTpuJobOperator`` or ``@task.ray_tpu`` runs, and in nothing else.
"""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path
from typing import Any

from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime.program import FOLDER, write
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import Host

_INTERVAL_S = 1.0

_told_at = 0.0


def reserved() -> ReservedSlice:
    """The whole slices that are this program's: ``plan``, ``hosts`` by rank, and on the driver the ``group``.

    ``group`` is a placement group with one bundle for each host, which holds all its chips. It is ``None`` once a
    host, where the chips are the process's own, and with ``reserve=False``.
    """
    task = _task()
    hosts = tuple(Host(**host) for host in task["hosts"])
    return ReservedSlice(plan(TpuSlice.parse(task["slice"])), _group(task["group"]), hosts)


def on(host: Host) -> dict[str, Any]:
    """Ray options that place an actor or a task on *host* of :func:`reserved`, with all its chips.

    As in ``Worker.options(**here.on(host)).remote()``.

    :raises RequestError: there is no placement group to place it in.
    """
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    held = reserved()
    if held.group is None:
        raise RequestError(
            "This program holds no placement group.", "here.on is for a program on the driver, with reserve=True."
        )
    return {
        "num_cpus": 1,
        "resources": {"TPU": held.plan.chips_per_worker},
        "scheduling_strategy": PlacementGroupSchedulingStrategy(held.group, placement_group_bundle_index=host.bundle),
    }


def rank() -> int:
    """Number of this process's host in ``reserved().hosts``; 0 on the driver."""
    return int(_task()["rank"])


def processes() -> dict[str, Any]:
    """What JAX needs to join the hosts' processes into one mesh: ``jax.distributed.initialize(**here.processes())``.

    :raises RequestError: this is the driver, which is no part of a mesh.
    """
    task = _task()
    if task["coordinator"] is None:
        raise RequestError("This program runs on the driver, where there are no chips.", "Set per_host=True.")
    return {
        "coordinator_address": task["coordinator"],
        "num_processes": len(task["hosts"]),
        "process_id": task["rank"],
    }


def progress(done: int, total: int = 0, unit: str = "step", **metrics: float) -> None:
    """Tell Airflow how far this program is. Cheap: at most one small file a second.

    From the first call on, the deadline ``stall`` counts from the last change of *done*.
    """
    global _told_at  # noqa: PLW0603 - one process, one voice
    last = done == total
    if not last and time.time() - _told_at < _INTERVAL_S:
        return
    _told_at = time.time()
    news = {
        "done": int(done),
        "total": int(total),
        "unit": unit,
        "metrics": {name: float(each) for name, each in metrics.items()},
    }
    write(_folder() / "news.json", news)


def _folder() -> Path:
    if FOLDER not in os.environ:
        raise RequestError("This process was not started by a RayTpuJobOperator.", "Use here inside such a program.")
    return Path(os.environ[FOLDER])


@functools.cache
def _task() -> dict[str, Any]:
    return json.loads((_folder() / "task.json").read_text())  # type: ignore[no-any-return]


def _group(name: str | None) -> Any:
    if name is None:
        return None
    from ray import PlacementGroupID
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(PlacementGroupID(bytes.fromhex(name)))
