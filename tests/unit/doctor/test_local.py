"""What simulated slices need of this machine, and storage as seen from it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.doctor import local, storage
from airflow_raytpu.doctor.findings import Level
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.storage import buckets
from tests.doubles import bucket_server

SLICE = TpuSlice("v6e", "4x4")


def look(root: str = "/tmp/rt", tpu_slice: TpuSlice | None = SLICE):
    return {each.check: each for each in local.looked_at(root, tpu_slice)}


@pytest.fixture
def memory(monkeypatch):
    def available(size: float) -> None:
        monkeypatch.setattr(local.psutil, "virtual_memory", lambda: SimpleNamespace(available=size))

    return available


def test_a_machine_that_has_it_all(memory, monkeypatch):
    memory(64e9)
    monkeypatch.setattr(local.shutil, "disk_usage", lambda path: SimpleNamespace(free=50e9))
    assert {check: found.level for check, found in look().items()} == dict.fromkeys(
        ("platform", "packages", "memory", "disk", "socket path"), Level.OK
    )
    assert "ray 2.60." in look()["packages"].says


def test_the_limit_is_the_backends():
    assert cluster._FOLDER_LIMIT == local.FOLDER_LIMIT


@pytest.mark.parametrize(("size", "level"), [(1.4e9, Level.ERROR), (3.8e9, Level.WARNING), (3.95e9, Level.OK)])
def test_memory(memory, size, level):
    memory(size)
    assert look()["memory"].level is level


def test_a_larger_slice_needs_more_memory(memory):
    memory(4e9)
    assert look(tpu_slice=TpuSlice("v6e", "8x8"))["memory"].level is Level.WARNING


@pytest.mark.parametrize(
    ("root", "level"),
    [("/tmp/" + "r" * 17, Level.OK), ("/tmp/" + "r" * 18, Level.WARNING), ("/tmp/" + "r" * 48, Level.ERROR)],
)
def test_the_path_of_sockets(root, level):
    assert look(root)["socket path"].level is level


def test_the_usual_folder_is_the_backends(monkeypatch):
    monkeypatch.delenv("RAYTPU_SIM_ROOT", raising=False)
    assert f"/tmp/raytpu-{os.getuid()}" in look("")["socket path"].says
    monkeypatch.setenv("RAYTPU_SIM_ROOT", "/tmp/elsewhere")
    assert "/tmp/elsewhere" in look("")["socket path"].says


def test_little_disk(monkeypatch):
    monkeypatch.setattr(local.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    assert look("/tmp/absent/deeper")["disk"].says == "0.0 GB of disk are free in /tmp; Ray's sessions take 1 GB."


@pytest.mark.parametrize(
    ("versions", "says"), [({"jax": ""}, "Not installed here: jax."), ({"ray": "2.61.0"}, "Ray is")]
)
def test_packages(monkeypatch, versions, says):
    real = local._version
    monkeypatch.setattr(local, "_version", lambda name: versions.get(name, real(name)))
    found = look()["packages"]
    assert (found.level, found.says.startswith(says)) == (Level.ERROR, True)
    assert found.apply == ("pip install 'airflow-raytpu[local]'",)


def test_a_platform_without_simulated_slices(monkeypatch):
    monkeypatch.setattr(local.platform, "system", lambda: "Darwin")
    assert look()["platform"].says == "Simulated slices need Linux; this is Darwin."


def test_storage_is_written_and_read(tmp_path: Path):
    found = storage.written(f"file://{tmp_path}")
    assert (found.level, found.says) == (Level.OK, f"file://{tmp_path} can be written and read from here")
    assert len((tmp_path / storage.PROBE).read_text()) == 16


def test_storage_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    found = storage.written(f"file://{tmp_path}/file/below")
    assert found.level is Level.ERROR
    assert "could not be written" in found.says


def test_storage_that_somebody_else_writes(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(storage.objects, "read_bytes", lambda uri: b"theirs")
    assert storage.written(f"file://{tmp_path}").level is Level.ERROR


def test_a_bucket_that_is_shut(monkeypatch):
    from airflow_raytpu.model.errors import PathError

    def refuse(*_: object) -> None:
        raise PathError("gs://b/runs could not be written: no.", "Grant it.")

    monkeypatch.setattr(storage.objects, "write_bytes", refuse)
    found = storage.written("gs://b/runs")
    assert (found.level, found.says) == (Level.ERROR, "gs://b/runs could not be written: no.")
    assert "gs://b \\" in found.apply[0]
    assert all(len(line) <= 76 for line in found.apply[0].split("\n"))


def test_a_bucket_is_written_and_read(monkeypatch):
    with bucket_server.serving() as (address, bucket):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        buckets._client.cache_clear()
        try:
            assert storage.written("gs://b/runs").level is Level.OK
            assert [*bucket.held] == [f"runs/{storage.PROBE}"]
            assert storage.written("gs://absent/runs").level is Level.ERROR
            bucket.refuse[:] = [403]
            refused = storage.written("gs://b/runs")
        finally:
            buckets._client.cache_clear()
    assert refused.level is Level.ERROR
    assert "Storage Object User" in refused.lever
    assert refused.apply
