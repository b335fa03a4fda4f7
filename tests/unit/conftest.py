from __future__ import annotations

import functools
import gc

import pytest

# Airflow, Ray and their like are 300,000 objects that stay: looking through them again and again takes seconds.
gc.set_threshold(10_000, 20, 20)


def pytest_collection_finish():
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _the_runtime_is_read_and_compressed_once():
    """Hundreds of tests ship it, most of them with the same code of an author's."""
    from airflow_raytpu.storage import staging

    compress = staging._zip
    runtime = functools.cache(staging._runtime)
    of = functools.lru_cache(maxsize=32)(lambda files: compress(dict(files)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "_runtime", lambda: dict(runtime()))
        patch.setattr(staging, "_zip", lambda files: of(tuple(sorted(files.items()))))
        yield


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
