"""JAX on one host of a slice: the environment before it is imported, and proof of the whole mesh after."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from airflow_raytpu.model.errors import BrokenSliceError, LostError
from airflow_raytpu.runtime.agreement import Board

_CPU_THREADS = "128"
_TOGETHER_S = 120.0
_NETWORK = "Look at the network between the hosts of this slice, and at the log of the host that is missing."


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


def prove(
    board: Board, rank: int, workers: int, meet: Callable[[], None] | None = None, within_s: float = _TOGETHER_S
) -> None:
    """Have data pass once between all devices, for JAX counts hosts that cannot reach one another.

    :param meet: returns once every process has come to it.
    :raises LostError: it did not, with the hosts that never came.
    """
    board.say(_here(rank), {"host": host()})
    failed: list[BaseException] = []
    meeting = threading.Thread(target=_met, args=(meet or _meet, failed), daemon=True, name="first collective")
    meeting.start()
    meeting.join(within_s)
    if failed:
        raise LostError(f"The first collective failed on {host()}: {failed[0]}", _NETWORK) from failed[0]
    if meeting.is_alive():
        absent = [str(each) for each in range(workers) if board.heard(_here(each)) is None]
        who = f"rank {', '.join(absent)} never came to it" if absent else "all hosts came to it"
        raise LostError(f"A first collective over {workers} hosts hangs after {within_s:.0f} s: {who}.", _NETWORK)


def _here(rank: int) -> str:
    return f"mesh {rank}"


def _met(meet: Callable[[], None], failed: list[BaseException]) -> None:
    try:
        meet()
    except BaseException as error:  # noqa: BLE001 - whoever waits raises it
        failed.append(error)


def _meet() -> None:
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices("airflow_raytpu")


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
