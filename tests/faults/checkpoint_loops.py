"""Train loops for the tests of checkpoints. They run in the cluster, where this file is the author's code.

A step follows from the state alone, so that a run which was broken off has the losses of one that was not. What is to
go wrong, and where, stands in the config: the worker itself does it, as nobody outside could hit the moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FLOATS = 1 << 18
"""Of the model, and again of its momentum: a save that can be hit, and is soon over."""

SHUFFLE = 3
"""Seed of the data's order."""

_WAYS, _ROUNDS, _BLOCK, _STEP_S, _PAUSE_S = ("bare", "orbax", "ours"), 8, 100, 0.02, 1.0
_FULL_AT = 1 << 16
_MOMENT_S = 60.0


def train(config: dict[str, Any]) -> None:
    """Train a model whose parts lie on all chips.

    Config: ``steps``; ``floats`` of the model; ``nan_from``, the first step whose loss is no number, and ``nan_once``,
    the same in the first try that gets there; ``nap``, seconds between steps; ``trace``, the file in which rank 0
    writes every step; ``root``, the folder of the checkpoints; ``request``, its name; ``faults``, see :func:`_around`;
    ``hosts``, how many hosts of the cluster are waited for at the step ``until_hosts``; ``batch``, the rows of its data
    set ``train`` that a step takes, which every rank writes down; ``patience``, for how many seconds
    its files are asked for.
    """
    import jax

    from airflow_raytpu.runtime import checkpoints, files

    files.ARROW_PATIENCE_S = config.get("patience", files.ARROW_PATIENCE_S)
    rank = jax.process_index()
    init, advance = _model(config.get("floats", FLOATS))
    state, step = checkpoints.restore_or_init(init)
    _note(config, rank, "from", step, *_megascale())
    if jax.process_count() > 1:
        hosts = jax.process_count() // int(os.environ.get("MEGASCALE_NUM_SLICES", "1"))
        assert int(os.environ.get("MEGASCALE_SLICE_ID", "0")) == rank // hosts
    once = Path(f"{config['trace']}.nan")
    nan_from = config.get("nan_from") or (config.get("nan_once") if not once.exists() else None)
    batches = _batches(config["batch"], step) if config.get("batch") else None
    while step < config["steps"]:
        if batches is not None:
            _write_down(config, rank, step, next(batches))
        state, loss = advance(state)
        step += 1
        # Told once it is true: what was only handed to the devices is not done.
        _note(config, rank, "done", step, float(loss))
        told = float("nan") if nan_from and step >= nan_from else loss
        if step == config.get("nan_once"):
            once.touch()
        time.sleep(config.get("nap", 0))
        if step == config.get("until_hosts"):
            _wait(lambda: _hosts() >= config["hosts"])
        with _around(config, rank, step):
            checkpoints.step(step, state, {"loss": told, "wave": abs(step - 7)})


def whole_shard(config: dict[str, Any]) -> None:
    """Go through this host's part of the data set ``train`` by Ray Data alone."""
    import ray.train

    shard = ray.train.get_dataset_shard("train")
    ray.train.report({"rows": sum(len(batch["id"]) for batch in shard.iter_batches())})


def measure(config: dict[str, Any]) -> None:
    """Write seconds of equal blocks of steps into ``trace``: bare, with saves by Orbax alone, and with the helper.

    The host only waits in a step, as it does for a TPU. Besides, seconds of each ``call`` that does not save.
    """
    import jax
    import orbax.checkpoint as ocp

    from airflow_raytpu.runtime import checkpoints

    rank = jax.process_index()
    init, advance = _model(FLOATS)
    state, done, alone = init(), 0, f"{config['root']}-alone"
    orbax, found = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()), {name: [] for name in (*_WAYS, "call")}
    for number in range(_ROUNDS * len(_WAYS)):
        way = _WAYS[number % len(_WAYS)]
        began = time.perf_counter()
        for step in range(1, _BLOCK + 1):
            state, loss = advance(state)
            time.sleep(_STEP_S)
            if way == "orbax" and step % 50 == 0:
                orbax.save(f"{alone}/{number}-{step}", args=ocp.args.StandardSave(state), force=True)
            if way == "ours":
                done, called = done + 1, time.perf_counter()
                checkpoints.step(done, state, {"loss": loss})
                if done % 50:
                    found["call"].append(time.perf_counter() - called)
        jax.block_until_ready(state)
        found[way].append(time.perf_counter() - began)
        orbax.wait_until_finished()
        time.sleep(_PAUSE_S)
    if rank == 0:
        Path(config["trace"]).write_text(json.dumps(found))


def _model(floats: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Gradient descent with momentum towards noise that the state's own random key gives."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("chip",))
    parts, whole = NamedSharding(mesh, PartitionSpec("chip")), NamedSharding(mesh, PartitionSpec())
    layout = {"w": parts, "momentum": parts, "key": whole, "steps": whole}

    def init() -> Any:
        zeros = jnp.zeros(floats)
        return {"w": zeros, "momentum": zeros, "key": jax.random.key(7), "steps": jnp.int32(0)}

    def advance(state: Any) -> tuple[Any, Any]:
        key, now = jax.random.split(state["key"])
        error = state["w"] - jax.random.normal(now, (floats,)) - 1
        momentum = 0.9 * state["momentum"] + error
        after = {"w": state["w"] - 0.1 * momentum, "momentum": momentum, "key": key, "steps": state["steps"] + 1}
        return after, jnp.mean(error**2)

    return jax.jit(init, out_shardings=layout), jax.jit(advance, out_shardings=(layout, whole))


def _batches(size: int, start: int) -> Iterator[dict[str, Any]]:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from airflow_raytpu.runtime import data

    parts = NamedSharding(jax.make_mesh((jax.device_count(),), ("chip",)), PartitionSpec("chip"))
    return data.batches("train", global_batch_size=size, start=start, shuffle_seed=SHUFFLE, sharding=parts)


def _write_down(config: dict[str, Any], rank: int, number: int, batch: dict[str, Any]) -> None:
    """Which rows of batch *number* lie on this host, and at which places of it."""
    with Path(f"{config['trace']}.rows-{rank}").open("a") as diary:
        for shard in batch["id"].addressable_shards:
            diary.write(f"{json.dumps([number, shard.index[0].start or 0, shard.data.tolist()])}\n")


def _megascale() -> list[str]:
    """What this process was started with, and what is left of it."""
    try:
        from sitecustomize import STALE
    except ImportError:
        STALE = {}  # noqa: N806 - as it is called there
    left = {name: value for name, value in os.environ.items() if name.startswith("MEGASCALE_")}
    return [f"{len(STALE)} stale", *sorted(f"{name}={value}" for name, value in left.items())]


def _note(config: dict[str, Any], rank: int, *words: Any) -> None:
    if rank == 0:
        with Path(config["trace"]).open("a") as trace:
            trace.write(" ".join(map(str, words)) + "\n")


@contextlib.contextmanager
def _around(config: dict[str, Any], rank: int, step: int) -> Iterator[None]:
    """Let go wrong what is to at *step*, around its save; each of ``faults`` once, however often the step is done.

    ``{"what", "rank", "step", "when"}``: ``worker``, ``host`` and ``driver`` are killed, when so many seconds of the
    save have passed, or (``"data"``) when its data is whole and its record is not written. ``drain`` is the host's
    notice, ``error`` the author's own, ``disk`` a full one for this save, and ``full`` one for ever.
    """
    due = [each for each in config.get("faults", ()) if (each["rank"], each["step"]) == (rank, step)]
    fault = next((each for each in due if _first_time(config, each)), None)
    what = fault["what"] if fault else ""
    if what == "error":
        raise ValueError("as the test wants it")
    if what == "drain":
        _drain()
    if what in ("disk", "full", *_VICTIMS):
        # The save before is not meant.
        _wait(_nothing_is_saved)
    if what in ("disk", "full"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL_AT, resource.RLIM_INFINITY))
    if what in _VICTIMS:
        threading.Thread(target=_kill, args=(config, fault), daemon=True).start()
    yield
    if what == "disk":
        _wait(_nothing_is_saved)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if what in _VICTIMS:
        # Not a step further.
        time.sleep(_MOMENT_S)


def mark(config: dict[str, Any], fault: dict[str, Any]) -> Path:
    """Made when *fault* is done; of a kill it says the newest committed step just before."""
    return Path(f"{config['trace']}.{fault['what']}-{fault['step']}")


def _first_time(config: dict[str, Any], fault: dict[str, Any]) -> bool:
    if mark(config, fault).exists():
        return False
    mark(config, fault).touch()
    return True


def _kill(config: dict[str, Any], fault: dict[str, Any]) -> None:
    victim = _VICTIMS[fault["what"]](config)
    if fault["when"] == "data":
        _wait((Path(config["root"]) / str(fault["step"])).exists)
    else:
        time.sleep(fault["when"])
    records = Path(config["root"]).glob("*/raytpu-commit.json")
    mark(config, fault).write_text(str(max((int(record.parent.name) for record in records), default=0)))
    os.kill(victim, signal.SIGKILL)


def _driver(config: dict[str, Any]) -> int:
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "airflow_raytpu.runtime" in words and config["request"] in words[-1]:
            return int(process.pid)
    raise LookupError(config["request"])


_VICTIMS: dict[str, Callable[[dict[str, Any]], int]] = {
    "worker": lambda _: os.getpid(),
    # Ray starts its workers from the raylet, without which the host is lost.
    "host": lambda _: os.getppid(),
    "driver": _driver,
}


def _drain() -> None:
    """What a cloud's notice leads to: Ray is told that this host will go."""
    import ray
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    client = ray._private.worker.global_worker.gcs_client
    node = ray.get_runtime_context().get_node_id()
    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why = client.drain_node(node, reason, "preempted", int((time.time() + _MOMENT_S) * 1000))
    assert accepted, why


def _hosts() -> int:
    """Living hosts of the cluster's slices."""
    import ray

    return sum(node["Alive"] and "TPU" in node["Resources"] for node in ray.nodes())


def _nothing_is_saved() -> bool:
    # By the thread that waits for Orbax and makes the checkpoint count.
    return not [thread for thread in threading.enumerate() if thread.name.startswith("commit ")]


def _wait(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + _MOMENT_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.0005)
