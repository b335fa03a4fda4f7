"""Training on held slices: two as one, a part of one, a single host beside larger ones, and none that is broken.

One cluster for all; the tests run in this order, and the last leaves a slice broken.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.faults.placement_trainer import Trainer
from tests.faults.test_placement import NOTHING, Driver, driver
from tests.simulated_cluster import running_cluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

BIG, TWO, PART, SINGLE = "v6e:4x4", "v6e:4x4*2", "v6e:2x4/4x4", "v6e:2x2"


@pytest.fixture(scope="module")
def trainer(tmp_path_factory) -> Iterator[Trainer]:
    with running_cluster(BIG, also=(BIG, SINGLE)) as cluster:
        yield Trainer(cluster, tmp_path_factory.mktemp("placed"))


@pytest.fixture(scope="module")
def first(trainer: Trainer) -> Iterator[Driver]:
    with driver(trainer.cluster) as found:
        yield found


@pytest.fixture(autouse=True)
def leaves_nothing(first: Driver) -> Iterator[None]:
    yield
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: first("left") == NOTHING, within_s=15)
    assert first("left") == NOTHING


def test_two_slices_train_as_one(trainer):
    value = trainer.run(trainer.request("two", TWO, slices=2))

    assert (value["processes"], value["devices"]) == (8, 32)
    assert value["metrics"] == {"step": 1, "on": 0, "worker": 0, "chips": 16}


def test_a_single_host_trains_on_itself_and_on_no_host_of_a_larger_slice(trainer):
    value = trainer.run(trainer.request("single", SINGLE, slices=1))

    assert (value["processes"], value["devices"]) == (1, 4)
    assert value["metrics"] == {"step": 1, "on": 2, "worker": 0, "chips": 4}


def test_a_part_of_a_slice_trains_while_another_part_is_held(trainer, first):
    # One slice whole, and one part of the other.
    held = first("take", PART, 30)
    assert held["workers"] == [0, 1]
    value = trainer.run(trainer.request("part", PART, slices=1))
    first("give")

    assert (value["processes"], value["devices"]) == (2, 8)
    assert value["metrics"] == {"step": 1, "on": int(held["on"][0][-1]), "worker": 2, "chips": 8}


def test_a_driver_killed_in_training_leaves_nothing_held(trainer, first):
    request = trainer.request("killed", BIG, loop="linger")

    def kill_in_training():
        wait_for(lambda: '"training"' in trainer.progress(request), within_s=90)
        late = first("take", TWO, 1)
        (process,) = [
            process
            for process in psutil.process_iter(["cmdline"])
            if request.outbox("request") in (process.info["cmdline"] or []) and "-m" in process.info["cmdline"]
        ]
        os.kill(process.pid, signal.SIGKILL)
        seen.append(late)

    seen: list[dict] = []
    killer = threading.Thread(target=kill_in_training)
    killer.start()
    ended = trainer.cluster.run(request)
    killer.join()
    assert ended.outcome is None
    assert "2 slices of v6e 4x4 present: 1 free, 1 busy" in seen[0]["error"]
    got = first("take", TWO, 15)
    assert sorted(set(got["on"])) == ["tests-shared-0", "tests-shared-1"]
    first("give")


def test_of_four_that_race_for_two_slices_two_run_at_a_time(trainer):
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(driver(trainer.cluster)) for _ in range(4)]
        for one in waiting:
            one.start("take", BIG, 90)
        running: list[tuple[Driver, list[str]]] = []
        while waiting:
            winner = wait_for(lambda: next((one for one in waiting if one.has_answered()), None), within_s=20)
            got = winner.answer()
            waiting.remove(winner)
            assert len(set(got["on"])) == 1, got
            # No host ever has two of our workers.
            assert not set(got["nodes"]) & {node for _, nodes in running for node in nodes}
            running.append((winner, got["nodes"]))
            if len(running) == 2:
                time.sleep(1)
                assert not any(one.has_answered() for one in waiting)
                running.pop(0)[0]("give")


def test_with_a_broken_slice_the_first_start_is_on_the_good_one(trainer, first):
    trainer.cluster.kill_host(0, 2)
    wait_for(lambda: first("look", BIG) == {"tests-shared-0": "broken", "tests-shared-1": "free"}, within_s=15)

    value = trainer.run(trainer.request("beside", BIG, slices=1))

    assert value["metrics"] == {"step": 1, "on": 1, "worker": 0, "chips": 16}
