"""Ends the build of the Ray image with a list of what is wrong with it, if anything is."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import version

PYTHON = (3, 12)
"""JAX for Ironwood (tpu7x) needs it."""

JAX = (0, 8, 2)
"""Older ones do not know Ironwood's device."""

NEEDED = ("airflow_raytpu.runtime.__main__", "gcsfs", "google.cloud.storage", "jax", "orbax.checkpoint", "ray.serve")


def faults() -> list[str]:
    found = []
    if sys.version_info < PYTHON:
        found.append(f"Python is {sys.version.split()[0]}, not {'.'.join(map(str, PYTHON))} or newer.")
    if importlib.util.find_spec("airflow") is not None:
        found.append("Airflow is installed: it does not belong here.")
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            found.append(f"{name} cannot be imported: {error}.")
    if tuple(map(int, version("jax").split(".")[:3])) < JAX:
        found.append(f"jax is {version('jax')}, not {'.'.join(map(str, JAX))} or newer.")
    if not version("ray").startswith("2.60."):
        found.append(f"ray is {version('ray')}, not 2.60.")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(faults()) or 0)
