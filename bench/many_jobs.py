"""``python -m bench.many_jobs [JOBS]``: what a long-lived cluster keeps of jobs that have ended.

One job after another on one simulated cluster, each on a slice of it; then what still lives, and whether it became
slower. It takes about five seconds for each job.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.storage import staging
from airflow_raytpu.storage.programs import find_program
from bench.measure import Result, a_a_ratio
from tests.chaos.outside import RayTables
from tests.simulated_cluster import SimulatedCluster, job_request, processes_of, running_cluster, short_folder

SHAPE = "v6e:2x2"
_JOBS, _EDGE = 200, 20
_GOAL = 2.0
_SETTLES_S = 60.0


def main(arguments: list[str]) -> int:
    """0 where nothing is left and the last jobs are accepted about as fast as the first."""
    jobs = int(arguments[0]) if arguments else _JOBS
    edge = min(_EDGE, jobs // 2)
    with running_cluster(SHAPE) as cluster, short_folder() as folder:
        code = _code(folder)
        # The first job has Ray start what it keeps for all others.
        _play(cluster, _request(cluster, folder, code, "first"))
        before = _living(cluster)
        accepted, whole = [], []
        for number in range(jobs):
            began = time.perf_counter()
            accepted.append(_play(cluster, _request(cluster, folder, code, f"job-{number}")))
            whole.append(time.perf_counter() - began)
            if number % _EDGE == _EDGE - 1:
                print(f"{number + 1} of {jobs} jobs, {sum(whole[-_EDGE:]) / _EDGE:.1f} s each", flush=True)
        after = _settled(cluster, before)
    left = {what: number - before[what] for what, number in after.items() if number > before[what]}
    print(f"alive before and after {jobs} jobs: {before} and {after}; load {os.getloadavg()[0]:.1f}")
    slowest = [statistics.quantiles(some, n=20)[-1] for some in (accepted[:edge], accepted[-edge:])]
    result = Result(
        id="many_jobs.accepted",
        what=f"submission to Ray's yes, p95 of the last {edge} of {jobs} over that of the first ({slowest[0]:.3f} s)",
        value=round(slowest[1] / slowest[0], 3),
        unit="",
        goal=_GOAL,
        a_a_ratio=a_a_ratio(accepted),
        rounds=jobs,
    )
    print(json.dumps(result.to_dict()))
    return 0 if result.holds and not left else 1


def _settled(cluster: SimulatedCluster, before: dict[str, int]) -> dict[str, int]:
    """What lives once it is no more than *before*, or a minute later."""
    until, now = time.monotonic() + _SETTLES_S, _living(cluster)
    while any(now[what] > before[what] for what in now) and time.monotonic() < until:
        time.sleep(1)
        now = _living(cluster)
    return now


def _code(folder: Path) -> str:
    (folder / "hello.py").write_text("print('hello')\n")
    return staging.stage([find_program(str(folder / "hello.py")).code], folder.as_uri())


def _request(cluster: SimulatedCluster, folder: Path, code: str, name: str) -> RayRequest:
    told = {"how": "script", "entry": "hello.py", "args": [], "kwargs": {}, "env": {}}
    rest = {"per_host": False, "reserve": True, "failures": 0, "evictions": 0}
    return job_request(
        name, folder / name, code, on=cluster.request, kind=Kind.JOB, slice=SHAPE, arguments={**told, **rest}
    )


def _play(cluster: SimulatedCluster, request: RayRequest) -> float:
    """Run it to its end; seconds until Ray had accepted it."""
    began = time.perf_counter()
    asyncio.run(_ensure(cluster, request))
    accepted = time.perf_counter() - began
    if (outcome := cluster.run(request).outcome) is None or not outcome.succeeded:
        raise RuntimeError(cluster.log(request))
    return accepted


async def _ensure(cluster: SimulatedCluster, request: RayRequest) -> None:
    backend = SimulatedBackend(cluster.root)
    try:
        if not await backend.ensure(request):
            raise RuntimeError(f"{cluster.request.name} is not ready")
    finally:
        await backend.close()


def _living(cluster: SimulatedCluster) -> dict[str, int]:
    """Actors, placement groups and processes of the cluster, without the idle workers that Ray keeps for a while."""
    tables = RayTables(cluster.facts["dashboard"], (cluster.found.folder / "token").read_text())
    names = [Path(f"/proc/{each.pid}/cmdline") for each in processes_of(cluster.found)]
    working = [name for name in names if name.exists() and b"ray::IDLE" not in name.read_bytes()]
    return {"actors": len(tables.actors()), "groups": len(tables.groups()), "processes": len(working)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
