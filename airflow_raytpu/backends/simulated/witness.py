"""What Ray itself says about its nodes and its API. Imports Ray; only the supervisor imports this module."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path

from airflow_raytpu.backends.simulated import nodes
from airflow_raytpu.backends.simulated.proof import RayNode
from airflow_raytpu.model.errors import ClusterError

_ANSWER_WITHIN_S = 10.0


def import_ray() -> None:
    """:raises ClusterError: it is not installed."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ClusterError(f"Ray cannot be imported: {error}.", "pip install 'airflow-raytpu[local]'") from error


def ray_nodes(address: str) -> list[RayNode]:
    """Ray's node table, from the GCS at *address*; asked in a forked process, see :func:`nodes.told_by_fork`."""
    rows = nodes.told_by_fork(lambda: [asdict(node) for node in _ray_nodes(address)])
    return [RayNode(**row) for row in rows or ()]


def _ray_nodes(address: str) -> list[RayNode]:
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated.gcs_pb2 import GcsNodeInfo
    from ray.exceptions import RpcError

    try:
        table = GcsClient(address=address).get_all_node_info(timeout=_ANSWER_WITHIN_S)
    except RpcError:
        return []  # which proves nothing, so it will be asked again
    return [
        RayNode(
            ip=node.node_manager_address,
            alive=node.state == GcsNodeInfo.ALIVE,
            labels=dict(node.labels),
            resources=dict(node.resources_total),
        )
        for node in table.values()
    ]


def api_fault(dashboard: str, token: Path) -> list[str]:
    """Why jobs cannot be submitted yet; empty once they can."""
    request = urllib.request.Request(  # noqa: S310 - always http on loopback
        f"{dashboard}/api/jobs/", headers={"Authorization": f"Bearer {token.read_text()}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_WITHIN_S):  # noqa: S310
            return []
    except (OSError, urllib.error.URLError) as error:
        return [f"the Jobs API at {dashboard} does not answer ({error})"]
