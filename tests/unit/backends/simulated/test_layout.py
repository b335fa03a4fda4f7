from __future__ import annotations

from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated import layout
from airflow_raytpu.backends.simulated.environment import ClusterPlace
from airflow_raytpu.backends.simulated.state import Arrivals
from airflow_raytpu.placement.topology import TpuSlice

PLACE = ClusterPlace(
    folder=Path("/c"),
    uid="u",
    block="127.20.1.",
    port=20001,
    endpoint="http://127.0.0.1:20002",
    python="/usr/bin/python",
)
DUE = {"etl-0": TpuSlice.parse("v6e:4x4"), "etl-1": TpuSlice.parse("v6e:2x4@ct6e-standard-4t")}


@pytest.mark.parametrize(
    ("arrivals", "awaited"),
    [(Arrivals(), []), (Arrivals(late=1), ["etl-1"]), (Arrivals(late=None), ["etl-0", "etl-1"])],
)
def test_the_last_slices_are_late(arrivals: Arrivals, awaited: list[str]) -> None:
    parts = layout.slices(DUE, PLACE, arrivals)
    assert [part.name for part in parts if part.awaited] == awaited
    assert [part.name for part in parts if not part.whole] == awaited


def test_each_host_has_an_address_and_a_folder_of_its_own() -> None:
    parts = layout.slices(DUE, PLACE, Arrivals())
    plans = [
        layout.host(PLACE, part, index, host.worker_id, 1) for index, part in enumerate(parts) for host in part.hosts
    ]
    plans.append(layout.head(PLACE, 20003))
    assert len({plan.ip for plan in plans}) == len({plan.temp for plan in plans}) == 7
    assert [plan.head for plan in plans] == [False] * 6 + [True]


def test_a_host_finds_its_slice_in_its_environment() -> None:
    part = layout.slices(DUE, PLACE, Arrivals())[1]
    plan = layout.host(PLACE, part, 1, 1, 29991)
    assert plan.chips == 4
    assert plan.environment == {
        "TPU_NAME": "etl-1",
        "TPU_WORKER_ID": "1",
        "TPU_TOPOLOGY": "2x4",
        "TPU_ACCELERATOR_TYPE": "v6e-8",
        "JAX_PROFILER_PORT": "29991",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
