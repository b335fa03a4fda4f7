"""What a simulated node's processes find in their environment: what a pod's would, and nothing of Airflow. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_raytpu.backends.simulated.processes import MARK
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice

_FOREIGN = (
    "AIRFLOW",
    "_AIRFLOW",
    "RAY_",
    "RAYTPU_",
    "TPU_",
    "JAX_",
    "XLA_",
    "LIBTPU_",
    "MEGASCALE_",
    "PYTHONDONTWRITE",
)
"""Settings of somebody else's Ray or JAX, and Airflow's, which hold secrets that no pod would have."""

_RAY = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Room for a last checkpoint between SIGTERM and SIGKILL; Ray's own default is 3 s.
    "RAY_JOB_STOP_WAIT_TIME_S": "30",
    # A killed host refuses connections, so it is seen in 2 s (by default 13 s); one that is slow has 5 s to answer.
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "4",
    # Nobody scrapes a simulated cluster; it saves a tenth of the start's CPU time.
    "RAY_enable_metrics_collection": "0",
    "RAY_prestart_worker_first_driver": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlace:
    """Where one cluster lives.

    :param block: its loopback block, ``127.x.y.``.
    :param port: of the GCS, on the head's address.
    :param endpoint: base URL on which Serve must listen.
    :param python: the interpreter that ``python`` must mean.
    """

    folder: Path
    uid: str
    block: str
    port: int
    endpoint: str
    python: str

    @property
    def head_ip(self) -> str:
        return f"{self.block}1"

    @property
    def address(self) -> str:
        return f"{self.head_ip}:{self.port}"

    def host_ip(self, index: int) -> str:
        """Address of the *index*-th host of the whole cluster."""
        return f"{self.block}{index + 10}"


HOSTS_LIMIT = 240
"""As many hosts as one loopback block has addresses for."""


def cluster_environment(inherited: Mapping[str, str], place: ClusterPlace, chips_per_host: int) -> dict[str, str]:
    """The environment of every node of the cluster; a host has its own number of devices."""
    kept = {name: value for name, value in inherited.items() if not name.startswith(_FOREIGN)}
    return {
        **kept,
        **_RAY,
        "HOME": str(place.folder / "home"),
        # What Ray's processes leave when they are killed goes with the cluster. Short, as Unix sockets need.
        "TMPDIR": str(place.folder / "t"),
        "PATH": f"{Path(place.python).parent}:{kept.get('PATH', '/usr/bin:/bin')}",
        "RAY_ADDRESS": place.address,
        "RAY_AUTH_TOKEN_PATH": str(place.folder / "token"),
        "RAYTPU_ENDPOINT": place.endpoint,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": _devices(chips_per_host),
        MARK: place.uid,
    }


def host_environment(tpu_slice: TpuSlice, slice_name: str, worker_id: int, profiler_port: int) -> dict[str, str]:
    """What GKE adds in a TPU pod; Ray derives the host's labels and resources from it (Ray 2.60)."""
    return {
        "TPU_NAME": slice_name,
        "TPU_WORKER_ID": str(worker_id),
        "TPU_TOPOLOGY": tpu_slice.topology,
        "TPU_ACCELERATOR_TYPE": plan(tpu_slice).pod_type,
        "JAX_PROFILER_PORT": str(profiler_port),
        "XLA_FLAGS": _devices(tpu_slice.chips_per_host),
    }


def _devices(chips: int) -> str:
    return f"--xla_force_host_platform_device_count={chips}"
