"""Checkpoints of real gangs: kills in the middle of a save, full disks, a notice, other meshes, other runs' states.

One cluster for all, whose processes all begin with the MEGASCALE_* variables of a job of three slices that is gone.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

import pytest

from airflow_raytpu.backends.simulated.state import Arrivals
from airflow_raytpu.model.observation import JobState
from airflow_raytpu.model.spent import after_loss
from airflow_raytpu.storage.series import series
from tests.faults import checkpoint_loops
from tests.faults.checkpoint_gangs import (
    EVERY,
    LARGE,
    SINGLE,
    SMALL,
    STEPS,
    TWO,
    Gangs,
    Try,
    assert_rows,
    fault,
    left,
    record,
    tries,
    workers,
)
from tests.faults.checkpoint_loops import FLOATS
from tests.simulated_cluster import running_cluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(540)]

SEED = 20261130

STALE = """
import os
STALE = {"MEGASCALE_NUM_SLICES": "3", "MEGASCALE_SLICE_ID": "2", "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.9:8081"}
os.environ.update(STALE)
"""


@pytest.fixture(scope="module")
def gangs(tmp_path_factory) -> Iterator[Gangs]:
    folder = tmp_path_factory.mktemp("saved runs")
    (folder / "stale").mkdir()
    (folder / "stale" / "sitecustomize.py").write_text(STALE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "stale"))
        with running_cluster(SMALL, also=[SMALL, LARGE, SINGLE], arrivals=Arrivals(heal_s=1.0)) as cluster:
            yield Gangs(cluster, folder)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[int, float]:
    """The losses of the same loop outside of any task, in one process with eight devices."""
    trace = tmp_path_factory.mktemp("alone") / "trace"
    code = f"import checkpoint_loops; checkpoint_loops.train({{'steps': {STEPS}, 'trace': {str(trace)!r}}})"
    devices = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    here = Path(checkpoint_loops.__file__).parent
    subprocess.run([sys.executable, "-c", code], cwd=here, env={**os.environ, **devices}, check=True, timeout=200)
    lines = [line.split() for line in trace.read_text().splitlines()]
    return {int(step): float(loss) for word, step, loss, *_ in lines if word == "done"}


def assert_losses(of: Sequence[Try], uninterrupted: dict[int, float]) -> None:
    for each in of:
        assert each.losses == pytest.approx({step: uninterrupted[step] for step in each.losses}, rel=1e-6)


def test_kills_in_saves_and_a_notice_cost_at_most_an_interval_and_change_no_loss(gangs, uninterrupted):
    moment = random.Random(SEED)
    faults = [
        fault("worker", 1, 10, moment.uniform(0, 0.4)),
        fault("host", 1, 15, moment.uniform(0, 0.4)),
        fault("worker", 0, 20, "data"),
        fault("driver", 0, 25, moment.uniform(0, 0.4)),
        fault("drain", 1, 27),
    ]
    more = {"config": {"faults": faults, "batch": 16}, "datasets": {"train": gangs.write_rows(100)}, "evictions": 9}
    first = gangs.request("killed", **more)
    ended = gangs.run(first)
    # As the operator begins again after a driver that was killed.
    spent = after_loss(first.arguments, ended.progress, "the driver was killed")
    second = gangs.request("killed", attempt=2, **more, spent=spent.to_dict())
    value = gangs.result(second)

    assert (ended.job, ended.outcome) == (JobState.FAILED, None)
    runs = tries(first)
    lost = [one.reached - after.began for one, after in itertools.pairwise(runs)]
    assert [each.reached for each in runs[:4]] == [10, 15, 20, 25]
    assert all(0 <= steps <= EVERY for steps in lost), lost
    committed = [
        int(checkpoint_loops.mark(first.arguments["train_loop_config"], each).read_text()) for each in faults[:4]
    ]
    # Not one step more than what came since the newest record.
    assert all(steps <= one.reached - known for steps, one, known in zip(lost, runs, committed, strict=False)), (
        committed
    )
    # The data of step 20 was whole; only its record was missing.
    assert lost[2] == EVERY
    assert lost[4] == 0
    log = gangs.cluster.log(first)
    assert "checkpoints/20 is torn (it has no valid commit record) and is passed over" in unquote(log)
    assert [int(step) for step in re.findall(r"going on from step (\d+)", log)] == [each.began for each in runs[1:4]]
    assert re.search(r"Ray drains node \w+ in \d+ s: saved at step \d+, and left in time", gangs.cluster.log(second))

    assert_losses(runs, uninterrupted)
    assert value["metrics"]["loss"] == pytest.approx(uninterrupted[STEPS], rel=1e-6)
    assert (value["step"], value["resumed_from"]) == (STEPS, runs[4].began)
    assert (value["failures"], value["evictions"]) == (0, 5)
    # Nor is a second lost over the attempts.
    assert value["held_s"] > spent.held_s > 0
    assert value["goodput"]["redone_s"] >= round(spent.goodput["redone_s"], 1)
    assert value["goodput"]["init_s"] > spent.goodput["init_s"] > 0
    # The data went on where it stood, each time.
    assert_rows(second, STEPS)
    assert not [each for each in (first, second) if "what lies between" in gangs.cluster.log(each)]
    stood = record(second, STEPS)["data"]["train"]
    assert (stood["next_batch"], stood["rows_seen"]) == (STEPS, STEPS * 16)
    per_epoch = {"batches_per_epoch": 6, "dropped_per_epoch": 4}
    assert value["datasets"] == {"train": {"rows": 100, "global_batch_size": 16, **per_epoch}}
    # No torn one, and nothing that an unfinished save left.
    assert left(second) == sorted([str(runs[5].began), str(STEPS)])


def test_a_full_disk_of_one_host_is_outlived_but_at_the_last_save(gangs):
    faults = [fault("disk", 1, 10), fault("disk", 0, 20), fault("full", 1, 22)]
    request = gangs.request("full", config={"faults": faults, "steps": 22}, policy={"longest_save": 300})

    outcome = gangs.outcome(request)

    assert outcome.code == "RT305"
    log = gangs.cluster.log(request)
    host = r"\(host 1, slice tests-shared-\d+\)"
    good = f"The last good one is step 15 ({request.storage}/checkpoints/15)."
    assert re.search(rf"The checkpoint of step 22 could not be saved: .*File too large.* {host}", outcome.cause)
    assert outcome.cause.endswith(f"(it was the last one). {good}")
    assert re.search(rf"step 10 could not be saved: .*File too large.*{host} \(1 of 3 in a row\).*step 5 ", log)
    assert re.search(r"step 20 could not be saved: .* \(1 of 3 in a row\).*step 15 ", log)
    assert set(left(request)) - {"20.orbax-checkpoint-tmp", "22.orbax-checkpoint-tmp"} == {"5", "15"}
    # Orbax's threads wait for their host for 300 s; neither the driver nor a worker does.
    wait_for(lambda: not workers(gangs.cluster), within_s=60)


def test_a_state_goes_from_mesh_to_mesh_and_no_stale_variable_with_it(gangs, uninterrupted):
    shapes = [LARGE, SMALL, TWO, SMALL]
    faults = [fault("error", 0, step) for step in (3, 5, 7)]
    config, rows = {"faults": faults, "steps": 8, "batch": 32}, {"train": gangs.write_rows(75)}
    chain = [
        gangs.request("meshes", shape, attempt=number, config=config, datasets=rows, policy={"every_steps": 2})
        for number, shape in enumerate(shapes, 1)
    ]

    outcomes = [gangs.outcome(request) for request in chain]

    assert [each.code for each in outcomes] == ["RT301", "RT301", "RT301", ""], outcomes
    assert (outcomes[-1].value["processes"], outcomes[-1].value["resumed_from"]) == (2, 6)
    runs = tries(chain[0])
    assert [(each.began, each.reached) for each in runs] == [(0, 3), (2, 5), (4, 7), (6, 8)]
    assert_losses(runs, uninterrupted)
    # Four hosts, two, two of each of two slices, two again: the same rows, each batch from where it was left.
    assert_rows(chain[-1], 8)
    single, two = "3 stale", r"3 stale MEGASCALE_COORDINATOR_ADDRESS=127\.\S+ .*NUM_SLICES=2 .*SLICE_ID=0"
    assert [each.environment for each in (runs[0], runs[1], runs[3])] == [single] * 3
    assert re.match(two, runs[2].environment)


@pytest.mark.long
def test_a_warm_start_has_the_state_of_the_run_before_or_is_refused(gangs, uninterrupted):
    before = gangs.request("warm", SINGLE, run_id="yesterday", config={"steps": 4})
    given = gangs.result(before)["checkpoint"]

    # As JaxTrainerOperator gives "previous_run", and an address.
    today = gangs.request("warm", run_id="today", config={"steps": 3}, warm_start="", warm_start_run="yesterday")
    value = gangs.result(today)
    wide = gangs.request("wide", config={"floats": 2 * FLOATS}, warm_start=given)
    refused = gangs.outcome(wide)
    nowhere = gangs.request("nowhere", warm_start=given.removesuffix("/4") + "/3")
    missing = gangs.outcome(nowhere)

    assert (value["step"], value["resumed_from"], value["warm_start"]) == (3, 0, given)
    (warm,) = tries(today)
    assert warm.began == 0
    assert list(warm.losses.values()) == pytest.approx([uninterrupted[step] for step in (5, 6, 7)], rel=1e-6)
    assert refused.code == "RT305"
    differs = f"momentum is float32[{2 * FLOATS}] in the model and float32[{FLOATS}] in the checkpoint"
    assert refused.cause == f"The checkpoint {given} is of another model: {differs}."
    assert refused.lever == "Pass a checkpoint of this model."
    assert missing.cause == f"There is no checkpoint at {nowhere.arguments['warm_start']}."
    assert missing.lever == "Give the checkpoint that a training task returned."
    # That was known before it had a slice.
    assert "waiting for a slice" not in gangs.cluster.log(nowhere)


def test_a_run_with_a_kill_and_a_loss_that_heals_accounts_for_every_second(gangs):
    faults = [fault("worker", 0, 10, 0.1)]
    request = gangs.request(
        "accounts",
        SINGLE,
        config={"faults": faults, "nan_once": 20, "nap": 0.3, "steps": 24},
        profiler={"start_step": 2, "steps": 2},
        on_nan="roll_back",
        failures=1,
        evictions=1,
    )

    value = gangs.result(request)

    first, second, third = tries(request)
    assert (value["step"], value["evictions"], value["failures"]) == (24, 1, 1)
    assert re.match("failures 1: The loss is nan at step 20 ", value["causes"][1])
    assert (first.began, second.reached, third.began, third.reached) == (0, 20, 15, 24)

    goodput = value["goodput"]
    held = ("useful_s", "init_s", "compile_s", "saving_s", "redone_s", "idle_s")
    assert sum(goodput[name] for name in held) == pytest.approx(value["held_s"], abs=0.4)
    assert min(goodput[name] for name in held) >= 0
    # 24 steps of a nap each; and what came after step 15 was done again.
    assert goodput["useful_s"] > 4
    assert value["lost_s"] == goodput["redone_s"] > 0
    assert goodput["init_s"] > 1
    assert 0 < goodput["useful"] <= goodput["ceiling"] < 1
    (done,) = re.findall(r"^done: (.*)$", gangs.cluster.log(request), re.MULTILINE)
    told = r"step 24, loss [\d.]+, wave 17; 1 eviction, 1 failure; [\d.]+ chip-hours, \d+ % useful \(init"
    assert re.match(told, done)

    points = series(value["series"])
    steps = [point.step for point in points]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (1, 24)
    losses = first.losses | second.losses | third.losses
    assert [point.metrics["loss"] for point in points] == pytest.approx([losses[step] for step in steps], rel=1e-6)

    assert value["profile"] == f"{request.storage}/profile/1"
    assert list(Path(unquote(value["profile"].removeprefix("file://"))).rglob("*.xplane.pb"))


@pytest.mark.long
def test_a_loss_that_is_no_number_replaces_neither_the_best_nor_the_newest(gangs):
    policy = {"every_steps": 2, "keep": 1, "best": ["wave", "min"]}
    first = gangs.request("nan", SINGLE, config={"nan_from": 13, "steps": 16}, policy=policy, on_nan="stop")
    stopped = gangs.outcome(first)
    after = left(first)
    config = {"nan_from": 13, "steps": 16}
    second = gangs.request(
        "nan", SINGLE, attempt=2, config=config, policy=policy, on_nan="ignore", resume="never", evictions=1
    )
    value = gangs.result(second)

    assert stopped.code == "RT306"
    assert re.search(r"The loss is nan at step 1[34]", stopped.cause)
    assert f"The last good checkpoint is step 12 ({first.storage}/checkpoints/12)." in stopped.cause
    # Of steps 6 and 8, equally good, the newer one.
    assert after == ["12", "8"]
    assert [each.began for each in tries(first)] == [0, 0]
    assert (value["step"], value["best_step"], value["resumed_from"]) == (16, 8, 0)
    assert left(second) == ["16", "8"]
    assert {record(second, step)["request"] for step in (8, 16)} == {second.name}
