"""JAX on one host of a slice: the environment before it is imported, and proof of the whole mesh after."""

from __future__ import annotations

import os

from airflow_raytpu.model.errors import BrokenSliceError

_CPU_THREADS = "128"


def prepare() -> None:
    """Make this process's environment fit for JAX. Before JAX is imported."""
    # Ray sets these for several slices; a stale one makes libtpu wait for slices that are gone.
    for name in [name for name in os.environ if name.startswith("MEGASCALE_")]:
        del os.environ[name]
    if platform() == "cpu":
        # A collective holds a thread of XLA's pool until all devices have come to it. With a thread a core, a few steps
        # in flight fill the pool with waiters and nobody is left to arrive (JAX 0.10 with gloo). NPROC sizes the pool.
        os.environ["NPROC"] = _CPU_THREADS


def platform() -> str:
    """The platform JAX is meant to run on here, as the host's ``JAX_PLATFORMS`` says."""
    return os.environ.get("JAX_PLATFORMS", "").split(",")[0] or "tpu"


def host() -> str:
    """``host 3, slice rtc-a-0``, for messages."""
    return f"host {os.environ.get('TPU_WORKER_ID', '0')}, slice {os.environ.get('TPU_NAME', 'of one host')}"


def check(workers: int, devices: int) -> None:
    """:raises BrokenSliceError: JAX sees other processes, devices or a platform than the slice has."""
    import jax

    seen = (jax.process_count(), len(jax.devices()))
    if seen != (workers, devices):
        raise BrokenSliceError(
            f"JAX sees {seen[0]} processes and {seen[1]} devices on {host()}; the slice has {workers} and {devices}.",
            "Look at JAX_PLATFORMS and XLA_FLAGS of the hosts: each must show all its chips, and nothing else.",
        )
    if jax.default_backend() != platform():
        raise BrokenSliceError(
            f"JAX runs on {jax.default_backend()} on {host()}, where JAX_PLATFORMS says {platform()}.",
            "Another process may hold the chips; the host's own log says why JAX could not take them.",
        )
