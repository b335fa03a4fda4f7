"""Begin only when whole TPU slices are there: a cluster that proves them, and a sensor that waits for them anywhere.

With no connection at all it runs on simulated slices on this machine. With RAYTPU_SIM_LATE_S=60 in the environment of
Airflow they come a minute after their cluster, as those of a cloud may.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_raytpu import Deadlines, slice_params
from airflow_raytpu.operators import RayTpuClusterOperator
from airflow_raytpu.sensors import TpuSliceSensor

PATIENCE = timedelta(hours=2)

with DAG(
    "wait_for_capacity",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["raytpu", "example"],
    params=slice_params(default="v6e:2x2"),
):
    # Done when a slice of it is whole and held by nobody; that Ray's head answers is not enough.
    cluster = RayTpuClusterOperator(
        task_id="cluster", slice="{{ params.slice }}", min_idle_slices=1, deadlines=Deadlines(slice_wait=PATIENCE)
    )

    # Whichever cluster has one. It waits in the triggerer, where a thousand of them take no worker slot.
    free = TpuSliceSensor(task_id="free", slice="{{ params.slice }}", timeout=PATIENCE)

    @task
    def begin(cluster: str, slices: list[str]) -> str:
        """Stands for the work: an operator would take ``cluster=free.output["cluster"]``."""
        return f"slice {slices[0]} of cluster {cluster} is idle"

    begun = begin(free.output["cluster"], free.output["slices"])
    cluster.teardown(after=[begun])
