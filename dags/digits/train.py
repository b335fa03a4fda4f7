"""Training, as plain Ray Train and plain JAX: data parallel over every chip of the slice."""

from __future__ import annotations


def train_loop_per_worker(config):
    """One host's part of the run. *config*: ``steps``, ``learning_rate``, ``global_batch_size`` and ``seed``."""
    import jax
    import numpy as np
    import optax
    from jax.flatten_util import ravel_pytree
    from jax.sharding import NamedSharding, PartitionSpec

    from airflow_raytpu.runtime import checkpoints, data
    from digits.model import Classifier

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    everywhere, by_row = PartitionSpec(), PartitionSpec("data")
    model = Classifier()
    optimizer = optax.adam(config["learning_rate"])

    def init_state():
        params = model.init(jax.random.key(config["seed"]), np.zeros((1, 64), np.float32))
        return {"params": params, "optimizer": optimizer.init(params)}

    def loss_fn(params, batch):
        logits = model.apply(params, batch["pixels"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
        return loss, (logits.argmax(axis=-1) == batch["label"]).mean()

    def gradients_of(params, batch):
        (loss, accuracy), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params, batch)
        # One collective for all of it: for a model this small, a step costs what its collectives wait for.
        flat, unflatten = ravel_pytree((gradients, {"loss": loss, "accuracy": accuracy}))
        return unflatten(jax.lax.pmean(flat, "data"))

    gradients_over_mesh = jax.shard_map(
        gradients_of, mesh=mesh, in_specs=(everywhere, by_row), out_specs=everywhere, check_vma=False
    )

    @jax.jit
    def train_step(state, batch):
        gradients, metrics = gradients_over_mesh(state["params"], batch)
        updates, optimizer_state = optimizer.update(gradients, state["optimizer"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer_state}, metrics

    init_everywhere = jax.jit(init_state, out_shardings=NamedSharding(mesh, everywhere))
    state, step = checkpoints.restore_or_init(init_everywhere)
    # Batch n is the same on any number of hosts: a run that goes on at its step repeats none and misses none.
    batches = data.batches(
        "train",
        global_batch_size=config["global_batch_size"],
        start=step,
        stop=config["steps"],
        shuffle_seed=config["seed"],
        sharding=NamedSharding(mesh, by_row),
    )
    for batch in batches:
        state, metrics = train_step(state, batch)
        step += 1
        checkpoints.step(step, state, metrics)
