"""What simulated slices need of this machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from airflow_raytpu.doctor.findings import Found, error, ok, warning
from airflow_raytpu.placement.topology import TpuSlice

PACKAGES = ("ray", "jax", "flax", "optax", "orbax-checkpoint")
_RAY = "2.60."

_HEAD_BYTES, _HOST_BYTES, _TRAINING_BYTES = 700_000_000, 200_000_000, 600_000_000
"""Measured with a v6e 4x4 (PSS): idle, and what a host that trains takes more."""

_DISK_BYTES = 1_000_000_000

FOLDER_LIMIT = 64
"""As in :mod:`airflow_raytpu.backends.simulated.cluster`."""
_NAME = 41


def looked_at(root: str, tpu_slice: TpuSlice | None) -> Iterator[Found]:
    """:param root: folder of the clusters; ``$RAYTPU_SIM_ROOT`` or ``/tmp/raytpu-<uid>`` where empty."""
    folder = Path(root or os.environ.get("RAYTPU_SIM_ROOT") or f"/tmp/raytpu-{os.getuid()}")  # noqa: S108 - only looked at
    yield _platform()
    yield _packages()
    yield _memory(tpu_slice or TpuSlice("v6e", "4x4"))
    yield _disk(folder)
    yield _path(folder)


def _platform() -> Found:
    system = platform.system()
    if system == "Linux":
        return ok("platform", system)
    return error("platform", f"Simulated slices need Linux; this is {system}.", "Use a Linux container.")


def _packages() -> Found:
    versions = {name: _version(name) for name in PACKAGES}
    missing = [name for name, version in versions.items() if not version]
    install = "pip install 'airflow-raytpu[local]'"
    if missing:
        return error("packages", f"Not installed here: {', '.join(missing)}.", "Install the extra local.", install)
    if not versions["ray"].startswith(_RAY):
        return error("packages", f"Ray is {versions['ray']}, not {_RAY}x.", "Install the extra local.", install)
    return ok("packages", ", ".join(f"{name} {version}" for name, version in versions.items()))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _memory(tpu_slice: TpuSlice) -> Found:
    idle = _HEAD_BYTES + tpu_slice.total_hosts * _HOST_BYTES
    busy = idle + tpu_slice.total_hosts * _TRAINING_BYTES
    free = psutil.virtual_memory().available
    have = f"{free / 1e9:.1f} GB of memory are available"
    shape = f"{tpu_slice.accelerator} {tpu_slice.topology}"
    if free < idle:
        return error("memory", f"{have}; {shape} takes {idle / 1e9:.1f} GB idle.", "Free some, or use fewer hosts.")
    if free < busy:
        return warning("memory", f"{have}; {shape} takes about {busy / 1e9:.1f} GB while it trains.", "Free some.")
    return ok("memory", have)


def _disk(folder: Path) -> Found:
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    free = shutil.disk_usage(there).free
    have = f"{free / 1e9:.1f} GB of disk are free in {there}"
    if free < _DISK_BYTES:
        return warning("disk", f"{have}; Ray's sessions take 1 GB.", "Free some, or set RAYTPU_SIM_ROOT.")
    return ok("disk", have)


def _path(folder: Path) -> Found:
    length = len(os.fsencode(folder)) + 1
    if length + _NAME <= FOLDER_LIMIT:
        return ok("socket path", f"{folder} leaves room for clusters' names")
    left = FOLDER_LIMIT - length
    lever = "Set RAYTPU_SIM_ROOT to a shorter path, such as /tmp/rt."
    if left <= len("x-12345678"):
        return error("socket path", f"{folder} is {length - 1} bytes long: no Unix socket fits below it.", lever)
    return warning("socket path", f"{folder} leaves {left} of {_NAME} bytes for a cluster's name.", lever)
