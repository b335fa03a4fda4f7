"""What jobs cost that wait inside a cluster for a slice: ``python -m bench.backfill 30``.

On simulated slices: two jobs hold both slices of a cluster, and so many more wait for one. Memory is counted so that
pages of several processes count once (PSS); a job is its driver and Ray's supervisor of it, both on the head.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.storage import staging
from airflow_raytpu.storage.programs import find_program
from tests.simulated_cluster import SimulatedCluster, job_request, processes_of, running_cluster, short_folder, wait_for

_SHAPE = "v6e:2x2"
_SETTLE_S, _MEASURE_S = 10.0, 30.0
_LIMIT_S = 500.0
_PARTS = {"airflow_raytpu.runtime": "driver", "JobSupervisor": "supervisor", "gcs_server": "gcs"}
_PROGRAM = """
import sys, time
from pathlib import Path

marks, name = Path(sys.argv[1]), sys.argv[2]
(marks / f"{name}.began").write_text(str(time.time()))
while name.startswith("hold") and not (marks / "go").exists():
    time.sleep(0.2)
"""


def main() -> None:
    count = int(sys.argv[1])
    with running_cluster(_SHAPE, also=[_SHAPE]) as slices, short_folder() as folder:
        print(json.dumps(asyncio.run(_measure(slices, folder, count)), indent=2))


async def _measure(slices: SimulatedCluster, folder: Path, count: int) -> dict[str, Any]:
    backend = SimulatedBackend(slices.root)
    (folder / "turn.py").write_text(_PROGRAM)
    code = staging.stage([find_program(str(folder / "turn.py")).code], folder.as_uri())

    def request(name: str) -> RayRequest:
        told = {"how": "script", "entry": "turn.py", "args": [str(folder), name], "kwargs": {}, "env": {}}
        rest = {"per_host": False, "reserve": True, "failures": 0, "evictions": 0}
        arguments = {**told, **rest}
        return job_request(
            name, folder / name, code, on=slices.request, kind=Kind.JOB, slice=_SHAPE, arguments=arguments
        )

    try:
        await _submit(backend, [request("hold-0"), request("hold-1")])
        await _until(lambda: len(_begun(folder)) == 2)
        before = _use(slices)
        began = time.time()
        await _submit(backend, [request(f"date-{number}") for number in range(count)])
        await _until(lambda: len(list(folder.glob("date-*/outbox/*.progress.json"))) == count)
        waiting_after = time.time() - began
        await asyncio.sleep(_SETTLE_S)
        first = _use(slices)
        await asyncio.sleep(_MEASURE_S)
        last = _use(slices)
        freed = time.time()
        (folder / "go").touch()
        await _until(lambda: len(_begun(folder)) == count + 2)
    finally:
        await backend.close()
    order = [int(name.removeprefix("date-")) for name in _begun(folder) if name.startswith("date-")]
    return {
        "jobs": count,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "all_wait_after_s": round(waiting_after, 1),
        "memory_each_mb": _each(before, last, "mb", count),
        "cpu_to_start_each_s": _each(before, first, "cpu_s", count),
        "cpu_while_waiting_cores": {
            part: round((last[part]["cpu_s"] - first[part]["cpu_s"]) / _MEASURE_S, 3) for part in last
        },
        "all_begun_after_s": round(time.time() - freed, 1),
        "most_overtaken": max(sum(earlier > each for earlier in order[:place]) for place, each in enumerate(order)),
    }


async def _submit(backend: SimulatedBackend, requests: Sequence[RayRequest]) -> None:
    for each in requests:
        if not await backend.ensure(each):
            raise RuntimeError("the cluster is not ready")


async def _until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_for, condition, _LIMIT_S)


def _begun(folder: Path) -> list[str]:
    """Names of the programs that have begun, in that order."""
    return [path.stem for path in sorted(folder.glob("*.began"), key=lambda path: path.stat().st_mtime_ns)]


def _use(slices: SimulatedCluster) -> dict[str, dict[str, float]]:
    """Memory in MB, and CPU seconds so far, of the parts of the head that waiting jobs use."""
    found = {part: {"mb": 0.0, "cpu_s": 0.0} for part in _PARTS.values()}
    for process in processes_of(slices.found):
        _add(found, process)
    return found


def _add(found: Mapping[str, dict[str, float]], process: ProcessId) -> None:
    try:
        seen = psutil.Process(process.pid)
        words = " ".join(seen.cmdline())
        part = next((part for word, part in _PARTS.items() if word in words), None)
        if part is not None:
            times = seen.cpu_times()
            found[part]["mb"] += seen.memory_full_info().pss / 1e6
            found[part]["cpu_s"] += times.user + times.system
    except psutil.NoSuchProcess:
        return


def _each(
    before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]], what: str, count: int
) -> dict[str, float]:
    return {part: round((after[part][what] - before[part][what]) / count, 2) for part in ("driver", "supervisor")}


if __name__ == "__main__":
    main()
