from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from tests.doubles.ray_dashboard import RayDashboard


@pytest.fixture
def no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters are folders and no more."""
    monkeypatch.setattr(cluster, "_spawn", lambda found: None)


@pytest.fixture
def root(short_path: Path) -> Path:
    return cluster.root_folder(short_path / "root")


@pytest.fixture
async def backend(root: Path) -> AsyncIterator[SimulatedBackend]:
    made = SimulatedBackend(root)
    yield made
    await made.close()


@pytest.fixture
async def ray() -> AsyncIterator[RayDashboard]:
    async with RayDashboard().running() as dashboard:
        yield dashboard
