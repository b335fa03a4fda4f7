from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.model.request import RayRequest
from tests.contract.harness import FILES, Harness
from tests.simulated_cluster import SimulatedCluster, job_request, stage_files


@pytest.fixture(params=["simulated"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    """Each backend in turn; what jobs a test leaves behind are stopped."""
    made: Harness = _MAKERS[request.param](request, tmp_path)
    yield made
    for job in made.jobs:
        await made.backend.delete(job)
    await made.backend.close()


def _simulated(request: pytest.FixtureRequest, scratch: Path) -> Harness:
    shared: SimulatedCluster = request.getfixturevalue("simulated_cluster")
    code = stage_files(FILES, scratch / "code")
    jobs: list[RayRequest] = []

    def job(name: str = "", **arguments: Any) -> RayRequest:
        # The cluster outlives the test, so its jobs' names must not be another test's.
        task_id = f"{name}-{request.node.name}-{scratch}"
        jobs.append(job_request(task_id, scratch / "a folder", code, on=shared.request, arguments=arguments))
        return jobs[-1]

    def open_() -> SimulatedBackend:
        return SimulatedBackend(shared.root)

    return Harness(open_(), shared.request, open_, job, jobs, scratch)


_MAKERS = {"simulated": _simulated}
