"""What the rounds run in the cluster: programs that write down, by their own hand, that they ran and how far they came.

Each process has a file of its own in the round's folder, one JSON object a line: ``begin`` with its pid, then ``step``
by step, then ``end`` where it did all that was asked of it. Nothing of the provider has a part in that.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

CHECKPOINT_EVERY = 6


class Diary:
    """The file of this process.

    :param node: id of the Ray node whose slice it works on, empty for none.
    """

    def __init__(self, folder, node):
        now, pid = time.time(), os.getpid()
        self._file = (Path(folder) / f"{now:.3f}-{pid}.jsonl").open("a", buffering=1)
        # Field 22 of its line is when the process began: with it a pid that is used again is told apart.
        tick = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        self._write("begin", pid=pid, tick=tick, node=node)

    def step(self, number):
        self._write("step", step=number)

    def end(self):
        self._write("end")

    def _write(self, what, **more):
        self._file.write(json.dumps({"what": what, "at": time.time(), **more}) + "\n")


def node():
    """The Ray node of this process."""
    import ray

    return ray.get_runtime_context().get_node_id()


def job(folder, steps, nap_s):
    """An ordinary program: *steps* steps, from the first one whenever it is begun again."""
    from airflow_raytpu.runtime import here

    diary = Diary(folder, here.reserved().hosts[0].node_id) if here.rank() == 0 else None
    for step in range(1, steps + 1):
        time.sleep(nap_s)
        here.progress(step, steps)
        if diary:
            diary.step(step)
    if diary:
        diary.end()
    return steps


def train(config):
    """A loop whose state is the number of its steps, so that a wrong restore is seen in it."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from airflow_raytpu.runtime import checkpoints

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    init = jax.jit(lambda: {"count": jnp.zeros(jax.device_count())}, out_shardings={"count": rows})
    advance = jax.jit(lambda state: {"count": state["count"] + 1})
    diary = Diary(config["folder"], node()) if jax.process_index() == 0 else None
    state, step = checkpoints.restore_or_init(init)
    while step < config["steps"]:
        time.sleep(config["nap_s"])
        state = advance(state)
        step += 1
        if diary:
            diary.step(step)
        checkpoints.step(step, state, {"loss": 1 / step})
    if any(float(shard.data[0]) != step for shard in state["count"].addressable_shards):
        raise ValueError(f"the state is not that of step {step}")
    if diary:
        diary.end()


def load(uri):
    """The model is a file that says where to write, and how slow to be."""
    from urllib.parse import unquote, urlparse

    return json.loads(Path(unquote(urlparse(uri).path)).read_text())


def predict(model, batch):
    """Twice the value; each batch is written down, and takes its time."""
    import jax
    from jax.experimental import io_callback

    # Traced once in each process; only the first one writes.
    diary = Diary(model["folder"], node()) if jax.process_index() == 0 else None
    done = itertools.count(1)

    def note():
        time.sleep(model["nap_s"])
        if diary:
            diary.step(next(done))

    io_callback(note, None, ordered=False)
    return {"double": batch["value"] * 2}


def serve(model, folder, version, nap_s):
    """An application that says its version, and takes *nap_s* seconds to be ready."""
    from ray import serve as ray_serve
    from starlette.responses import JSONResponse

    @ray_serve.deployment(num_replicas=1, ray_actor_options={"num_cpus": 0.1}, graceful_shutdown_timeout_s=3)
    class Echo:
        def __init__(self):
            diary = Diary(folder, "")
            for step in range(1, 11):
                time.sleep(nap_s / 10)
                diary.step(step)
            diary.end()

        async def __call__(self, request):
            return JSONResponse({"version": version})

    return Echo.bind()
