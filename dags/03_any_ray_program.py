"""Any program on whole TPU slices: here a burn-in, which proves a slice before long work is trusted to it.

One function runs once on each host, all hosts in one JAX mesh; one script with arguments is an ordinary Ray program
that places its own actors. With no connection at all it runs on simulated slices on this machine.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_raytpu import RetryBudget, slice_params
from airflow_raytpu.operators import RayTpuClusterOperator, RayTpuJobOperator

with DAG(
    "burn_in",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["raytpu", "example"],
    render_template_as_native_obj=True,
    params={
        **slice_params(default="v6e:4x4"),
        "size": Param(256, type="integer", minimum=16, maximum=16384, description="Rows of the matrix on each chip."),
        "megabytes": Param(4, type="integer", minimum=1, maximum=4096, description="What a host hands to the next."),
    },
):
    cluster = RayTpuClusterOperator(task_id="cluster", slice="{{ params.slice }}")

    @task.ray_tpu(cluster=cluster, per_host=True, retry_budget=RetryBudget(evictions=2))
    def prove(size: int):
        """Multiply on every chip and add up over all of them; what this host's chips made of it."""
        import os

        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.experimental import multihost_utils

        from airflow_raytpu.runtime import here

        jax.distributed.initialize(**here.processes())
        matrix = np.arange(size * size, dtype=np.float32).reshape(size, size) / size**2
        due = float(np.trace(matrix @ matrix))
        copies = [jax.device_put(matrix, chip) for chip in jax.local_devices()]
        found = [float(jnp.trace(copy @ copy)) for copy in copies]
        everywhere = multihost_utils.process_allgather(np.array(found)).reshape(-1)
        wrong = [number for number, value in enumerate(everywhere) if abs(value - due) > 1e-2 * abs(due)]
        if wrong:
            raise ValueError(f"chips {wrong} of {len(everywhere)} multiply wrongly: {due} is due")
        return {"host": int(os.environ.get("TPU_WORKER_ID", "0")), "chips": len(found), "of": len(everywhere)}

    proven = prove("{{ params.size }}")

    transfers = RayTpuJobOperator(
        task_id="transfers",
        cluster=cluster,
        run="burn_in/transfers.py",
        op_args=["--megabytes", "{{ params.megabytes }}", "--rounds", "3"],
    )

    @task
    def verdict(hosts: list[dict[str, Any]]) -> str:
        """What a reader of the run wants to know."""
        return f"{len(hosts)} hosts, {sum(host['chips'] for host in hosts)} of {hosts[0]['of']} chips proven"

    done = verdict(proven)
    proven >> transfers
    cluster.teardown(after=[done, transfers])
