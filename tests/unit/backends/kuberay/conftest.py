from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from airflow_raytpu.backends.kuberay.backend import KubeRayBackend
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest
from tests.doubles.kubernetes.kinds import crds_folder
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.doubles.ray_dashboard import RayDashboard
from tests.unit.backends.kuberay.coming_up import open_


@pytest.fixture
async def k() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes(crds=crds_folder()) as server:
        yield server


@pytest.fixture
async def ray() -> AsyncIterator[RayDashboard]:
    async with RayDashboard().running() as dashboard:
        yield dashboard


@pytest.fixture
async def backend(k: FakeKubernetes) -> AsyncIterator[KubeRayBackend]:
    made = open_(k)
    yield made
    await made.close()


@pytest.fixture
def request_of(tmp_path: Path) -> Any:
    def make(task_id: str = "train", kind: Kind = Kind.TRAIN, **changes: Any) -> RayRequest:
        return RayRequest(
            **{
                "identity": Identity(deployment="tests", dag_id="digits", task_id=task_id, run_id="run"),
                "kind": kind,
                "slice": "v6e:4x4",
                "storage": (tmp_path / "storage").as_uri(),
                "limits": Deadlines().since(time.time()),
                "code": None if kind is Kind.CLUSTER else "file:///code.zip",
                "options": {"image": "ray:1"},
                **changes,
            }
        )

    return make
