"""One train loop with two ways to save and come back: this package's helper, and Ray Train's own words by hand.

``python bench/restart_loops.py CONFIG`` trains by hand, as a driver of its own. Both ways save all parts of the state
with Orbax each :data:`EVERY` steps; a worker kills itself where the config says.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

EVERY = 5
_NAP_S = 0.1


def ours(config: dict[str, Any]) -> None:
    """With the helper."""
    from airflow_raytpu.runtime import checkpoints

    init, advance = _model()
    state, step = checkpoints.restore_or_init(init)
    while step < config["steps"]:
        state, loss = advance(state)
        step += 1
        _note(config, step, float(loss))
        checkpoints.step(step, state, {"loss": loss})


def by_hand(config: dict[str, Any]) -> None:
    """With ``ray.train.get_checkpoint`` and ``ray.train.report``, and saves that the loop waits for."""
    import jax
    import orbax.checkpoint as ocp
    import ray.train

    init, advance = _model()
    state, step = init(), 0
    with ocp.StandardCheckpointer() as checkpointer:
        found = ray.train.get_checkpoint()
        if found is not None:
            like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
            state, step = checkpointer.restore(found.path, like), int(Path(found.path).name)
        while step < config["steps"]:
            state, loss = advance(state)
            step += 1
            _note(config, step, float(loss))
            if step % EVERY == 0:
                path = f"{config['folder']}/by_hand/{step}"
                checkpointer.save(path, state, force=True)
                checkpointer.wait_until_finished()
                ray.train.report(
                    {"step": step},
                    checkpoint=ray.train.Checkpoint(path),
                    checkpoint_dir_name=str(step),
                    checkpoint_upload_mode=ray.train.CheckpointUploadMode.NO_UPLOAD,
                )


def _model() -> Any:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("chip",))
    parts = NamedSharding(mesh, PartitionSpec("chip"))

    def advance(state: Any) -> Any:
        error = state["w"] - 1
        return {"w": state["w"] - 0.1 * error}, jnp.mean(error**2)

    return jax.jit(lambda: {"w": jnp.zeros(1 << 18)}, out_shardings=parts), jax.jit(advance)


def _note(config: dict[str, Any], step: int, _loss: float) -> None:
    """Write the step down on the first host, and die on the last one where that is due."""
    import jax

    time.sleep(_NAP_S)
    if jax.process_index() == 0:
        with Path(config["trace"]).open("a") as trace:
            trace.write(f"step {step} {time.time()}\n")
    mark = Path(f"{config['trace']}.{step}")
    if step in config["kills"] and jax.process_index() == jax.process_count() - 1 and not mark.exists():
        mark.write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)


def main(config: dict[str, Any]) -> None:
    """Train by hand, as the documentation of Ray Train has it."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer

    here = str(Path(__file__).parent)
    # The size of XLA's thread pool: on two cores, collectives of 16 devices would fill it and wait for ever.
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": here, "NPROC": "128"}}, log_to_driver=False)
    JaxTrainer(
        by_hand,
        train_loop_config=config,
        scaling_config=ScalingConfig(use_tpu=True, topology="4x4", accelerator_type="TPU-V6E", num_workers=4),
        run_config=RunConfig(
            name="by_hand",
            storage_path=config["folder"],
            failure_config=FailureConfig(max_failures=len(config["kills"])),
        ),
    ).fit()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    # Workers find the loop by this name.
    importlib.import_module("restart_loops").main(json.loads(Path(sys.argv[1]).read_text()))
