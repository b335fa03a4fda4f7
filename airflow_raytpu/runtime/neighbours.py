"""What libtpu on each host is told of the others, where the host's own environment does not say it."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_raytpu.placement.parts import hosts_grid
from airflow_raytpu.placement.plan import SlicePlan

_PORT = 8476
"""Where libtpu of one host speaks to another's, as in JAX's own tests of several processes (JAX 0.10)."""


def environments(plan: SlicePlan, addresses: Sequence[str]) -> list[dict[str, str]]:
    """What to add to the environment of each host, by rank. Nothing for one whole slice: its hosts know it.

    :param addresses: IP of each host, by rank: slice by slice, then by worker id.
    """
    if plan.slice.part_of:
        return _part(plan, addresses)
    if plan.slice.num_slices > 1:
        return _slices(plan, addresses)
    return [{} for _ in addresses]


def _slices(plan: SlicePlan, addresses: Sequence[str]) -> list[dict[str, str]]:
    """Ray Train would set these only where it chose the slices itself (Ray 2.60)."""
    from ray.util.tpu import get_tpu_coordinator_env_vars

    count, hosts = plan.slice.num_slices, plan.slice.hosts
    return [get_tpu_coordinator_env_vars(addresses[0], count, rank // hosts) for rank in range(len(addresses))]


def _part(plan: SlicePlan, addresses: Sequence[str]) -> list[dict[str, str]]:
    """As processes of a torus of their own; else libtpu waits for all hosts of the slice. Not yet run on a TPU.

    Sides are x, y, z here; Ray divides with x as the last (2.60).
    """
    sides = [*reversed(hosts_grid(plan.slice.topology)), 1][:3]
    return [
        {
            "TPU_PROCESS_BOUNDS": ",".join(map(str, sides)),
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
            "TPU_PROCESS_ADDRESSES": ",".join(f"{address}:{_PORT}" for address in addresses),
            "TPU_PROCESS_PORT": str(_PORT),
            "CLOUD_TPU_TASK_ID": str(rank),
        }
        for rank in range(len(addresses))
    ]
