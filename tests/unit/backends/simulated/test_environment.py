from __future__ import annotations

from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated.environment import ClusterPlace, cluster_environment, host_environment
from airflow_raytpu.placement.topology import TpuSlice

PLACE = ClusterPlace(
    folder=Path("/tmp/r/c"),
    uid="u1",
    block="127.16.9.",
    port=20001,
    endpoint="http://127.0.0.1:20002",
    python="/venv/bin/python",
)


def test_a_node_finds_its_cluster_and_nobody_elses() -> None:
    inherited = {
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_AUTH_TOKEN": "x",
        "XLA_FLAGS": "--x",
        "TPU_NAME": "real",
        "PATH": "/bin",
    }
    found = cluster_environment(inherited, PLACE, chips_per_host=4)
    assert found["RAY_ADDRESS"] == "127.16.9.1:20001"
    assert found["RAY_AUTH_MODE"] == "token"
    assert found["RAY_AUTH_TOKEN_PATH"] == "/tmp/r/c/token"
    assert found["HOME"] == "/tmp/r/c/home"
    assert found["RAYTPU_ENDPOINT"] == "http://127.0.0.1:20002"
    assert found["JAX_PLATFORMS"] == "cpu"
    assert found["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4"
    assert found["PATH"] == "/venv/bin:/bin"
    assert found["RAYTPU_SIM_CLUSTER"] == "u1"
    assert "RAY_AUTH_TOKEN" not in found
    assert "TPU_NAME" not in found


@pytest.mark.parametrize(
    "name",
    ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW_CONN_GCP", "_AIRFLOW_PROCESS_CONTEXT", "PYTHONDONTWRITEBYTECODE"],
)
def test_nothing_of_airflow_gets_in(name: str) -> None:
    assert name not in cluster_environment({name: "secret"}, PLACE, chips_per_host=4)


def test_what_is_nobodys_business_stays() -> None:
    assert cluster_environment({"LANG": "C.UTF-8"}, PLACE, chips_per_host=4)["LANG"] == "C.UTF-8"


def test_a_host_looks_like_a_gke_pod() -> None:
    assert host_environment(TpuSlice.parse("v6e:4x4"), "train-0", 3, 20007) == {
        "TPU_NAME": "train-0",
        "TPU_WORKER_ID": "3",
        "TPU_TOPOLOGY": "4x4",
        "TPU_ACCELERATOR_TYPE": "v6e-16",
        "JAX_PROFILER_PORT": "20007",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }


def test_a_host_of_another_shape_has_its_own_number_of_devices() -> None:
    found = host_environment(TpuSlice.parse("v6e:2x4@ct6e-standard-8t"), "train-1", 0, 20007)
    assert found["XLA_FLAGS"] == "--xla_force_host_platform_device_count=8"


def test_addresses_are_of_the_clusters_own_block() -> None:
    assert [PLACE.head_ip, PLACE.host_ip(0), PLACE.host_ip(239)] == ["127.16.9.1", "127.16.9.10", "127.16.9.249"]
