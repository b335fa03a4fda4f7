"""Training with fully sharded data parallelism: each chip keeps a part of the weights, and has a part of the batch."""

from __future__ import annotations

SMALL = 4096
"""Arrays with fewer numbers are kept whole on every chip: parts of them would only cost messages."""


def train_loop_per_worker(config):
    """One host's part of the run.

    *config*: ``width``, ``layers``, ``steps``, ``learning_rate``, ``global_batch_size``, ``evaluate_every``, ``seed``;
    and for :func:`die_once`, ``kill_at_step`` and ``kill_marker``.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from airflow_raytpu.runtime import checkpoints, data
    from language_model.model import Transformer

    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",), axis_types=(AxisType.Auto,))
    everywhere, by_row = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("fsdp"))
    model = Transformer(
        config["width"], config["layers"], place=lambda hidden: jax.lax.with_sharding_constraint(hidden, by_row)
    )
    # The rate is applied below, by the step of this run: with a warm start Adam's own count goes on, the rate does not.
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.95), optax.add_decayed_weights(0.01)
    )
    rate = optax.warmup_cosine_decay_schedule(
        0.0, config["learning_rate"], max(1, config["steps"] // 10), config["steps"] + 1, config["learning_rate"] / 10
    )
    size = config["global_batch_size"]
    held_out = data.batches("held_out", global_batch_size=size, epochs=1, sharding=by_row)
    checks = [batch["tokens"] for batch in held_out]

    def init_state():
        params = model.init(jax.random.key(config["seed"]), jnp.zeros((mesh.size, checks[0].shape[1] - 1), jnp.int32))
        # What a run that goes on elsewhere must still know is part of the state.
        return {"params": params, "optimizer": optimizer.init(params), "loss_at_start": jnp.zeros(())}

    def loss_of(params, tokens):
        tokens = tokens.astype(jnp.int32)
        logits = model.apply(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def train_step(state, tokens, rate):
        loss, gradients = jax.value_and_grad(loss_of)(state["params"], tokens)
        updates, memory = optimizer.update(gradients, state["optimizer"], state["params"])
        params = jax.tree.map(lambda weight, update: weight - rate * update, state["params"], updates)
        return {**state, "params": params, "optimizer": memory}, loss

    parts = layout(mesh, jax.eval_shape(init_state))
    train_step = jax.jit(train_step, out_shardings=(parts, everywhere))
    loss_on_mesh = jax.jit(loss_of, out_shardings=everywhere)

    def evaluate(params):
        return float(np.mean([loss_on_mesh(params, tokens) for tokens in checks]))

    state, step = checkpoints.restore_or_init(jax.jit(init_state, out_shardings=parts))
    began, good = step, evaluate(state["params"])
    if step == 0:
        state["loss_at_start"] = jax.make_array_from_callback((), everywhere, lambda _: np.float32(good))
    facts = {"resumed_at": began, "learning_rate": config["learning_rate"]}
    # Batch n is the same on any number of hosts: a run that goes on at its step repeats none and misses none.
    batches = data.batches(
        "train",
        global_batch_size=size,
        start=step,
        stop=config["steps"],
        shuffle_seed=config["seed"],
        sharding=by_row,
    )
    for batch in batches:
        die_once(config, step)
        state, loss = train_step(state, batch["tokens"], np.float32(rate(step + 1)))
        step += 1
        if step % config["evaluate_every"] == 0 or step == config["steps"]:
            good = evaluate(state["params"])
        checkpoints.step(
            step, state, {"loss": loss, "held_out": good, "held_out_at_start": state["loss_at_start"], **facts}
        )


def layout(mesh, tree):
    """Where each array of *tree* is: in equal parts over the mesh, cut along its longest side that divides."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    def place(array):
        sides = [side for side, length in enumerate(array.shape) if length % mesh.size == 0]
        if array.size < SMALL or not sides:
            return NamedSharding(mesh, PartitionSpec())
        longest = max(sides, key=lambda side: array.shape[side])
        return NamedSharding(mesh, PartitionSpec(*[None] * longest, "fsdp"))

    return jax.tree.map(place, tree)


def die_once(config, step):
    """Kill the process on the last host when it comes to ``kill_at_step`` the first time, as the loss of a host would.

    That it was done is kept in storage, so that the run which goes on elsewhere is left in peace.
    """
    import os
    import signal

    import jax
    from pyarrow.fs import FileSystem, FileType

    due = config.get("kill_at_step") or 0
    if not due or step != due or jax.process_index() != jax.process_count() - 1:
        return
    filesystem, marker = FileSystem.from_uri(config["kill_marker"])
    if filesystem.get_file_info(marker).type is FileType.NotFound:
        with filesystem.open_output_stream(marker) as file:
            file.write(b"killed once")
        os.kill(os.getpid(), signal.SIGKILL)
