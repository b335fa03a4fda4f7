"""Once an hour, remove what this deployment left on TPUs and nobody looks after any more.

Each cluster ends by itself when nobody looks, and each job by its deadlines; this is for what could not. It asks
Airflow first: what a task at work has asked for stays. Like any DAG it is paused until you turn it on.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_raytpu.operators import RayTpuReapOperator

with DAG(
    "reap_orphans",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["raytpu", "example", "maintenance"],
):
    # One for each connection of type raytpu.
    RayTpuReapOperator(task_id="reap", older_than=timedelta(hours=1))
