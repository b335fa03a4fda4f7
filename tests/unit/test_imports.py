"""Airflow's side stays light: a DAG file that imports an operator loads no cluster or array library."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HEAVY = ["ray", "jax", "kubernetes", "kubernetes_asyncio", "google.cloud", "numpy", "pandas", "pyarrow"]
AIRFLOW = ["airflow.sdk", "airflow.triggers.base"]
OURS = [
    "airflow_raytpu",
    "airflow_raytpu.decorators.job",
    "airflow_raytpu.decorators.train",
    "airflow_raytpu.hooks.raytpu",
    "airflow_raytpu.links",
    "airflow_raytpu.operators.cluster",
    "airflow_raytpu.operators.inference",
    "airflow_raytpu.operators.job",
    "airflow_raytpu.operators.params",
    "airflow_raytpu.operators.reap",
    "airflow_raytpu.operators.serve",
    "airflow_raytpu.operators.train",
    "airflow_raytpu.provider_info",
    "airflow_raytpu.sensors.capacity",
    "airflow_raytpu.storage.staging",
    "airflow_raytpu.triggers.capacity",
    "airflow_raytpu.triggers.watch",
]


@pytest.fixture(scope="module")
def heavy() -> list[set[str]]:
    """What is loaded once Airflow is, and what is loaded with ours on top."""
    script = "import sys, importlib, json\n"
    for modules in (AIRFLOW, OURS):
        script += f"for name in {modules!r}: importlib.import_module(name)\n"
        script += f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    return [set(json.loads(line)) for line in done.stdout.splitlines()[-2:]]


def test_airflow_itself_is_light(heavy):
    # Nothing in 3.3.2, and then the next test is as strict as it reads.
    assert heavy[0] == set()


def test_importing_everything_of_ours_loads_nothing_heavy(heavy):
    assert heavy[1] - heavy[0] == set()


def test_the_package_alone_loads_no_airflow():
    script = (
        "import sys, airflow_raytpu.provider_info as info; info.get_provider_info(); print('airflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_public_name_is_there():
    import airflow_raytpu
    from airflow_raytpu import operators, sensors

    for module in (airflow_raytpu, operators, sensors):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []
        assert dir(module) == sorted(module.__all__)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = module.nothing
