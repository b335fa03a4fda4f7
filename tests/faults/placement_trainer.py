"""Training requests that say where they ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_raytpu.model.request import RayRequest
from tests.simulated_cluster import SimulatedCluster, job_request, stage_files

SOURCE = """
import os
import time


def where():
    import ray
    here = ray.get_runtime_context().get_node_id()
    labels = {node["NodeID"]: node["Labels"] for node in ray.nodes() if node["Alive"]}
    return labels[here]["ray.io/tpu-slice-name"], int(labels[here]["ray.io/tpu-worker-id"])


def count(config):
    import jax
    import jax.numpy as jnp
    import numpy as np
    import ray.train
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    name, worker = where()
    assert name == os.environ["TPU_NAME"]
    slices = int(os.environ.get("MEGASCALE_NUM_SLICES", "1"))
    mine = int(os.environ.get("MEGASCALE_SLICE_ID", "0"))
    assert slices == config["slices"]
    hosts = jax.process_count() // slices
    assert jax.process_index() // hosts == mine, (jax.process_index(), name, mine)
    assert jax.process_index() % hosts == worker % hosts, (jax.process_index(), name, worker)
    mesh = Mesh(np.array(jax.devices()).reshape(slices, -1), ("slice", "chip"))
    by_chip = NamedSharding(mesh, PartitionSpec(("slice", "chip")))
    ones = jax.jit(lambda: jnp.ones(jax.device_count()), out_shardings=by_chip)()
    # The sum over each slice alone says how many chips it has.
    everywhere = NamedSharding(mesh, PartitionSpec())
    per_slice = jax.jit(lambda x: x.reshape(slices, -1).sum(1), out_shardings=everywhere)(ones)
    ray.train.report({"step": 1, "on": int(name.rpartition("-")[2]), "worker": worker, "chips": float(per_slice[-1])})


def fails_once(config):
    import pathlib
    import ray.train

    mark = pathlib.Path(config["mark"])
    if ray.train.get_context().get_world_rank() == 0 and not mark.exists():
        # Until somebody else waits for the slice.
        while not mark.with_name("waiting").exists():
            time.sleep(0.1)
        mark.touch()
        raise ValueError("once")
    ray.train.report({"step": 1, "on": int(where()[0].rpartition("-")[2])})


def linger(config):
    import ray.train
    for step in range(1, 10_000):
        ray.train.report({"step": step})
        time.sleep(0.2)
"""


class Trainer:
    def __init__(self, cluster: SimulatedCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.code = stage_files({"placed.py": SOURCE}, folder / "code")

    def request(self, task_id: str, shape: str, loop: str = "count", failures: int = 0, **config: Any) -> RayRequest:
        return job_request(
            task_id,
            self.folder / task_id,
            self.code,
            on=self.cluster.request,
            slice=shape,
            arguments={
                "train_loop": f"placed:{loop}",
                "train_loop_config": config,
                "datasets": {},
                "checkpoint": {"every_steps": 5, "keep": 2},
                "failures": failures,
                "evictions": 0,
                "resume": "auto",
            },
        )

    def run(self, request: RayRequest) -> Any:
        """Train to the end; the result, whose metrics say where rank 0 was."""
        seen = self.cluster.run(request, within_s=100)
        assert seen.outcome is not None, self.cluster.log(request)
        assert seen.outcome.succeeded, self.cluster.log(request)
        # It was held before Ray Train looked, so nothing was tried twice.
        assert "Looking for a slice again" not in self.cluster.log(request)
        return seen.outcome.value

    def progress(self, request: RayRequest) -> str:
        path = Path(request.outbox("progress").removeprefix("file://"))
        return path.read_text() if path.exists() else ""
