"""JAX on one host: what is left of an earlier slice before it, and what proves the whole mesh after it."""

import os
import sys
from types import SimpleNamespace

import pytest

from airflow_raytpu.model.errors import BrokenSliceError
from airflow_raytpu.runtime import mesh


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("NPROC", "1")


def jax_sees(monkeypatch, processes, devices, backend="cpu"):
    seen = SimpleNamespace(
        process_count=lambda: processes, devices=lambda: range(devices), default_backend=lambda: backend
    )
    monkeypatch.setitem(sys.modules, "jax", seen)


def test_what_an_earlier_job_of_several_slices_left_behind_is_gone(monkeypatch):
    for name, value in {"NUM_SLICES": "3", "SLICE_ID": "2", "COORDINATOR_ADDRESS": "10.0.0.9"}.items():
        monkeypatch.setenv(f"MEGASCALE_{name}", value)
    mesh.prepare()
    assert not [name for name in os.environ if name.startswith("MEGASCALE_")]


def test_a_whole_mesh_is_left_alone(monkeypatch):
    jax_sees(monkeypatch, 4, 16)
    mesh.check(4, 16)


@pytest.mark.parametrize(("processes", "devices"), [(1, 4), (4, 15), (1, 16)])
def test_a_worker_that_would_train_alone_or_with_too_few_is_refused(monkeypatch, processes, devices):
    jax_sees(monkeypatch, processes, devices)
    with pytest.raises(BrokenSliceError, match=f"{processes} processes and {devices} devices .* has 4 and 16"):
        mesh.check(4, 16)


def test_chips_that_somebody_else_holds_are_not_taken_for_a_slow_cpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    jax_sees(monkeypatch, 4, 16)
    with pytest.raises(BrokenSliceError, match="runs on cpu"):
        mesh.check(4, 16)
