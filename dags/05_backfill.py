"""A backfill on a cluster with two slices: every run uses the one cluster, and two dates at a time are at work on it.

Turn it on, then ask for a month of it, in Airflow's UI or with::

    airflow backfill create --dag-id backfill --from-date 2026-11-01 --to-date 2026-11-30 --max-active-runs 30

With no connection at all it runs on simulated slices on this machine.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, task

from airflow_raytpu.operators import RayTpuClusterOperator

SLICE = "v6e:2x4@4t"
SLICES = 2

with DAG(
    "backfill",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
    tags=["raytpu", "example"],
):
    # By this name every run finds the cluster that the first one has brought up; unused, it goes by itself.
    cluster = RayTpuClusterOperator(task_id="cluster", name="backfill", slice=f"v6e:2x4*{SLICES}@4t")

    # Airflow counts a deferred task here as well, so no more of them are at work than there are slices.
    @task.ray_tpu(cluster=cluster, slice=SLICE, max_active_tis_per_dag=SLICES)
    def count(day: str) -> dict[str, Any]:
        """Stands for the work on one date: how many chips it had, and of which slice."""
        from airflow_raytpu.runtime import here

        held = here.reserved()
        return {"day": day, "slice": held.names[0], "chips": held.plan.chips_per_worker * len(held.hosts)}

    count("{{ ds }}")
