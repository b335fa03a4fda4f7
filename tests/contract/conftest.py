from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.model.request import RayRequest
from tests.contract.harness import FILES, Harness
from tests.kubernetes_cluster import KubernetesCluster, running_kubernetes_cluster
from tests.simulated_cluster import SimulatedCluster, job_request, stage_files


@pytest.fixture(scope="session")
def kubernetes_cluster() -> Iterator[KubernetesCluster]:
    """A ready ``v6e:4x4`` behind a Kubernetes API server, for all tests of the session."""
    with running_kubernetes_cluster("v6e:4x4") as found:
        yield found


@pytest.fixture(params=["simulated", "kuberay"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    """Each backend in turn; what jobs a test leaves behind are stopped."""
    made = _harness(request, tmp_path, *_MAKERS[request.param](request))
    yield made
    for job in made.jobs:
        await made.backend.delete(job)
    for backend in made.opened:
        await backend.close()


def _harness(
    request: pytest.FixtureRequest, scratch: Path, cluster: RayRequest, make: Callable[[], Backend]
) -> Harness:
    """:param make: opens a backend as another process would have."""
    code = stage_files(FILES, scratch / "code")
    jobs: list[RayRequest] = []
    opened: list[Backend] = []

    def job(name: str = "", **arguments: Any) -> RayRequest:
        # The cluster outlives the test, so its jobs' names must not be another test's.
        task_id = f"{name}-{request.node.name}-{scratch}"
        jobs.append(job_request(task_id, scratch / "a folder", code, on=cluster, arguments=arguments))
        return jobs[-1]

    def open_() -> Backend:
        opened.append(make())
        return opened[-1]

    return Harness(open_(), cluster, open_, job, jobs, opened, scratch)


def _simulated(request: pytest.FixtureRequest) -> tuple[RayRequest, Callable[[], Backend]]:
    shared: SimulatedCluster = request.getfixturevalue("simulated_cluster")
    return shared.request, lambda: SimulatedBackend(shared.root)


def _kuberay(request: pytest.FixtureRequest) -> tuple[RayRequest, Callable[[], Backend]]:
    shared: KubernetesCluster = request.getfixturevalue("kubernetes_cluster")
    return shared.request, shared.kubernetes.open


_MAKERS = {"simulated": _simulated, "kuberay": _kuberay}
