"""Airflow writes to AIRFLOW_HOME when it is imported, so that is a temporary folder before anything else happens."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

import pytest

_HOME = tempfile.mkdtemp(prefix="raytpu-unit-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"


@pytest.fixture
def place_with(monkeypatch, tmp_path):
    """Makes the hook answer with a place that opens the given backend."""
    from airflow_raytpu.hooks.raytpu import RayTpuHook
    from tests.doubles.airflow_side import Place

    def make(backend, **more):
        place = Place(storage=f"file://{tmp_path}/storage", backend=backend, **more)

        async def aplace(self):
            return place

        monkeypatch.setattr(RayTpuHook, "aplace", aplace)
        monkeypatch.setattr(RayTpuHook, "place", lambda self: place)
        return place

    return make


@pytest.fixture
def airflow_says(monkeypatch):
    """Sets the state that Airflow's server has for the task."""
    from airflow_raytpu.triggers import ownership

    def say(state):
        async def task_state(ti):
            return state

        monkeypatch.setattr(ownership, "task_state", task_state)

    return say
