from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_raytpu.demo.home import MARK, DemoHome, repository
from airflow_raytpu.model.errors import PathError


@pytest.fixture
def home(tmp_path: Path) -> DemoHome:
    return DemoHome(root=tmp_path / "a b" / ".demo", dags=tmp_path / "dags")


def test_outside_settings_do_not_reach_the_demo(home: DemoHome):
    outside = {
        "AIRFLOW_HOME": "/elsewhere",
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW_CONFIG": "/elsewhere/airflow.cfg",
        "RAY_ADDRESS": "1.2.3.4:5",
        "RAYTPU_SIM_ROOT": "/elsewhere",
        "JAX_PLATFORMS": "cuda",
        "XLA_FLAGS": "--x",
        "TPU_NAME": "x",
        "PYTHONPATH": "/elsewhere",
        "PYTHONDONTWRITEBYTECODE": "1",
        "VIRTUAL_ENV": "/elsewhere",
        "MAKEFLAGS": "-j",
        "HTTPS_PROXY": "http://proxy:1",
        "no_proxy": "x",
        "HOME": "/home/me",
        "PATH": "/usr/bin",
        "LANG": "C",
    }
    seen = home.environment(outside)
    assert seen.keys() - {"PYTHONUNBUFFERED", "SPT_NOENV", "RAY_USAGE_STATS_ENABLED"} == {
        *("AIRFLOW_HOME", MARK, "RAYTPU_SIM_ROOT", "HOME", "PATH", "LANG"),
    }
    assert seen["AIRFLOW_HOME"] == str(home.airflow)
    assert seen["RAYTPU_SIM_ROOT"] == str(home.simulated)
    assert seen["PATH"].endswith(f"{os.pathsep}/usr/bin")


def test_each_clone_has_a_short_place_of_its_own_for_simulated_clusters(home: DemoHome, tmp_path: Path):
    deep = DemoHome(root=tmp_path.joinpath(*["deep"] * 40), dags=tmp_path)
    assert deep.simulated != home.simulated
    assert len(str(deep.simulated)) < 40


def test_a_demo_starts_afresh(home: DemoHome):
    home.prepare()
    (home.storage / "old").touch()
    home.prepare()
    assert not (home.storage / "old").exists()
    assert home.simulated.stat().st_mode & 0o777 == 0o700
    home.remove()
    assert not home.root.exists()
    assert not home.simulated.exists()


def test_a_demo_may_keep_what_was_there(home: DemoHome):
    home.prepare()
    (home.storage / "old").touch()
    home.prepare(keep=True)
    assert (home.storage / "old").exists()
    home.remove()


def test_somebody_elses_folder_is_refused(home: DemoHome, tmp_path: Path):
    home.simulated.symlink_to(tmp_path)
    try:
        with pytest.raises(PathError, match="not a folder of yours"):
            home.prepare(keep=True)
    finally:
        home.simulated.unlink()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    home = DemoHome(root=tmp_path / "file" / ".demo", dags=tmp_path)
    with pytest.raises(PathError, match=r"cannot be written: Not a directory\."):
        home.prepare()


def test_the_clone_is_found():
    assert (repository() / "dags").is_dir()
