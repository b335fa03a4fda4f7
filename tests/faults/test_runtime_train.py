"""Training on a real slice: the author's error in their own words, and work that survives a killed driver."""

import json
import os
import signal
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyarrow import feather

from airflow_raytpu.model.observation import JobState
from airflow_raytpu.storage import staging
from airflow_raytpu.storage.code import find_code
from tests.simulated_cluster import job_request, wait_for

pytestmark = pytest.mark.cluster

SOURCE = """
def check(rank, step):
    if rank == 3:
        raise ValueError(f"labels out of range: {step + 5}")


def loop(config):
    import time
    import jax
    import jax.numpy as jnp
    import ray.train
    from jax.sharding import NamedSharding, PartitionSpec
    from airflow_raytpu.runtime import checkpoints

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    init = jax.jit(lambda: {"count": jnp.zeros(16), "steps": jnp.zeros((), jnp.int32)}, out_shardings={
        "count": rows, "steps": NamedSharding(mesh, PartitionSpec())})
    advance = jax.jit(lambda state: {"count": state["count"] + 1, "steps": state["steps"] + 1})

    state, step = checkpoints.restore_or_init(init)
    assert int(state["steps"]) == step
    while step < config["steps"]:
        if step == config.get("raise_at"):
            check(ray.train.get_context().get_world_rank(), step)
        state = advance(state)
        step += 1
        checkpoints.step(step, state, {"loss": 1 / step})
        time.sleep(config.get("nap", 0))
    assert all(float(shard.data[0]) == step for shard in state["count"].addressable_shards)


def plain(config):
    import jax
    import ray.train

    total = jax.jit(lambda batch: (batch["id"] * batch["row_mask"]).sum())
    seen = 0
    for step, batch in enumerate(ray.train.get_dataset_shard("train").iter_jax_batches(batch_size=8), 1):
        seen += int(total(batch))
        ray.train.report({"step": step, "loss": 1 / step, "seen": seen})


def both(config):
    import jax
    import jax.numpy as jnp
    import ray.train
    from jax.sharding import NamedSharding, PartitionSpec
    from airflow_raytpu.runtime import checkpoints

    whole = NamedSharding(jax.make_mesh((jax.device_count(),), ("data",)), PartitionSpec())
    state, step = checkpoints.restore_or_init(jax.jit(lambda: {"steps": jnp.int32(0)}, out_shardings=whole))
    advance = jax.jit(lambda state: {"steps": state["steps"] + 1}, out_shardings=whole)
    while step < 12:
        state, step = advance(state), step + 1
        checkpoints.step(step, state)
        ray.train.report({"own": step})
    newest = ray.train.get_checkpoint().path
    assert newest.endswith("/checkpoints/5"), newest
"""


class Trainer:
    def __init__(self, cluster, code, folder):
        self.cluster, self.code, self.folder = cluster, code, folder

    def request(self, task_id, attempt=1, loop="loop", datasets=None, **config):
        return job_request(
            f"train-{task_id}",
            self.folder / task_id,
            self.code,
            on=self.cluster.request,
            attempt=attempt,
            slice="v6e:4x4",
            arguments={
                "train_loop": f"runtime_wares:{loop}",
                "train_loop_config": config,
                "datasets": datasets or {},
                "checkpoint": {"every_steps": 5, "keep": 2},
                "failures": 0,
                "evictions": 0,
                "resume": "auto",
            },
        )

    def run(self, request):
        seen = self.cluster.run(request)
        assert seen.outcome is not None, self.cluster.log(request)
        return seen


@pytest.fixture(scope="module")
def trainer(simulated_cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("train run")
    (folder / "code").mkdir()
    (folder / "code" / "runtime_wares.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "code"))
        code = staging.stage([find_code("runtime_wares:loop", "train_loop")], (folder / "storage").as_uri())
    return Trainer(simulated_cluster, code, folder)


def test_the_authors_error_ends_the_log_and_the_task(trainer):
    request = trainer.request("raises", steps=50, raise_at=5)

    seen = trainer.run(request)

    assert seen.job is JobState.FAILED
    outcome = seen.outcome
    assert outcome.code == "RT301"
    slice_name = trainer.cluster.facts["slices"][0]["name"]
    assert outcome.cause.startswith("loop raised ValueError on rank 3 (host ")
    assert outcome.cause.endswith(f", slice {slice_name}) at step 5.")
    line = next(number for number, text in enumerate(SOURCE.splitlines(), 1) if "raise ValueError" in text)
    assert outcome.traceback.splitlines()[-1] == f"runtime_wares.py:{line}: ValueError: labels out of range: 10"
    assert "airflow_raytpu" not in outcome.traceback
    log = [text for text in trainer.cluster.log(request).splitlines() if text.strip()]
    assert log[-len(outcome.traceback.splitlines()) :] == outcome.traceback.splitlines()
    committed_at = (trainer.folder / "raises" / "checkpoints" / "5" / "raytpu-commit.json").stat().st_mtime
    told_at = Path(request.outbox("result").removeprefix("file://").replace("%20", " ")).stat().st_mtime
    assert told_at - committed_at < 20


def test_after_a_killed_driver_training_goes_on_from_the_newest_whole_checkpoint(trainer):
    first = trainer.request("resumes", steps=100_000, nap=0.1)
    checkpoints = trainer.folder / "resumes" / "checkpoints"

    def kill_after_two_commits():
        wait_for(lambda: len(list(checkpoints.glob("*/raytpu-commit.json"))) >= 2, within_s=90)
        (driver,) = [
            process
            for process in psutil.process_iter(["cmdline"])
            if first.outbox("request") in (process.info["cmdline"] or []) and "-m" in process.info["cmdline"]
        ]
        os.kill(driver.pid, signal.SIGKILL)

    import threading

    killer = threading.Thread(target=kill_after_two_commits)
    killer.start()
    seen = trainer.cluster.run(first)
    killer.join()
    assert seen.outcome is None
    assert seen.job is JobState.FAILED
    newest = max(int(record.parent.name) for record in checkpoints.glob("*/raytpu-commit.json"))
    torn = checkpoints / str(newest + 500)
    torn.mkdir()
    (torn / "data").write_text("half")

    second = trainer.request("resumes", attempt=2, steps=newest + 7)
    again = trainer.run(second)

    assert again.outcome.succeeded, again.outcome
    value = again.outcome.value
    assert value["resumed_from"] == newest
    assert value["step"] == newest + 7
    assert value["checkpoint"] == f"{second.storage}/checkpoints/{newest + 7}"
    assert (value["processes"], value["devices"]) == (4, 16)
    assert (value["failures"], value["evictions"]) == (0, 0)
    assert value["chip_hours"] > 0
    assert value["metrics"]["loss"] == pytest.approx(1 / (newest + 7))
    assert f"{newest + 500} is torn" in trainer.cluster.log(second)
    # The last of an interval of 5, and the very last step, which is none.
    assert {path.parent.name for path in checkpoints.glob("*/raytpu-commit.json")} == {str(newest + 5), str(newest + 7)}


def test_a_loop_that_only_reports_has_a_result(trainer):
    feather.write_feather(pa.table({"id": range(95)}), str(trainer.folder / "rows.feather"), chunksize=10)
    rows = {"uri": (trainer.folder / "rows.feather").as_uri(), "ragged": "pad"}
    request = trainer.request("plain", loop="plain", datasets={"train": rows})

    seen = trainer.run(request)

    assert seen.outcome.succeeded, seen.outcome
    value = seen.outcome.value
    assert (value["step"], value["metrics"]["loss"]) == (3, pytest.approx(1 / 3))
    # Each of its rows once, the copy masked.
    assert value["metrics"]["seen"] == sum(range(95))
    assert value["datasets"] == {"train": {"rows": 95, "per_host": 24, "padded": 1}}
    assert "get_dataset_shard('train'): {'rows': 95, 'per_host': 24, 'padded': 1}" in trainer.cluster.log(request)
    assert value["checkpoint"] is None
    assert (seen.progress.phase, seen.progress.done) == ("training", 3)
    assert 0 < seen.progress.slice_at <= seen.progress.first_at


@pytest.mark.long
def test_ray_train_knows_the_checkpoints_among_a_loops_own_reports(trainer):
    request = trainer.request("both", loop="both")

    seen = trainer.run(request)

    assert seen.outcome.succeeded, seen.outcome
    known = json.loads((trainer.folder / "both" / "checkpoints" / "checkpoint_manager_snapshot.json").read_text())
    results = [(each["checkpoint_dir_name"], each["metrics"]["step"]) for each in known["checkpoint_results"]]
    assert sorted(results) == [("10", 10), ("12", 12), ("5", 5)]
