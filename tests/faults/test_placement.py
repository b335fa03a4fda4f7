"""Whole slices under fire: real drivers race, die and find slices broken, on one cluster of mixed shapes.

The tests run in this order: from the killed host on, one of the two ``2x4`` on four-chip machines stays broken.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.placement_trainer import Trainer
from tests.simulated_cluster import SimulatedCluster, running_cluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PART = "v6e:2x4/4x4"
BIG, FOUR, EIGHT = "v6e:4x4", "v6e:2x4@ct6e-standard-4t", "v6e:2x4@ct6e-standard-8t"
TWO = "v6e:2x4*2@ct6e-standard-4t"
BIG_NAME, FOUR_NAMES, EIGHT_NAME = "tests-shared-0", ["tests-shared-1", "tests-shared-2"], "tests-shared-3"
NOTHING = {"groups": [], "held": {}}


class Driver:
    """A driver process; calling it has it do something, :meth:`start` does not wait for the answer."""

    def __init__(self, process):
        self.process = process
        self.answer()

    def __call__(self, what, *arguments):
        self.start(what, *arguments)
        return self.answer()

    def start(self, what, *arguments):
        self.process.stdin.write(json.dumps([what, *arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "the driver ended"
        return json.loads(line)

    def has_answered(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def driver(cluster: SimulatedCluster) -> Iterator[Driver]:
    script = Path(__file__).with_name("placement_driver.py")
    with subprocess.Popen(
        [sys.executable, str(script)],
        env=cluster.driver_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Driver(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def mixed() -> Iterator[SimulatedCluster]:
    with running_cluster(BIG, also=(FOUR, FOUR, EIGHT)) as found:
        yield found


@pytest.fixture(scope="module")
def first(mixed: SimulatedCluster) -> Iterator[Driver]:
    with driver(mixed) as found:
        yield found


@pytest.fixture(scope="module")
def second(mixed: SimulatedCluster) -> Iterator[Driver]:
    with driver(mixed) as found:
        yield found


@pytest.fixture(autouse=True)
def leaves_nothing(first: Driver) -> Iterator[None]:
    yield
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: first("left") == NOTHING, within_s=10)
    assert first("left") == NOTHING


def test_a_single_host_request_never_lands_on_a_host_of_a_larger_slice(first, second):
    for occupied in (False, True):
        if occupied:
            assert second("take", BIG, 10)["on"] == [BIG_NAME] * 4
        got = first("take", "v6e:2x2", 2)
        assert got["error"] == "RT203 No whole slice within 2 s (slice_wait): no slice of v6e 2x2 present."
    second("give")


def test_the_bundles_of_a_request_are_on_one_slice(first):
    for _ in range(3):
        got = first("take", FOUR, 10)
        assert got["on"] in [[name] * 2 for name in FOUR_NAMES]
        assert got["workers"] == [0, 1]
        assert len(set(got["nodes"])) == 2
        first("give")


def test_one_topology_on_two_machines_is_told_apart(first):
    for _ in range(4):
        assert set(first("take", FOUR, 10)["on"]) <= set(FOUR_NAMES)
        first("give")
        assert first("take", EIGHT, 10)["on"] == [EIGHT_NAME]
        first("give")


def test_two_slices_are_held_whole_and_a_third_claim_times_out_with_the_picture(first, second):
    got = first("take", TWO, 10)
    assert got["on"] == sorted(FOUR_NAMES * 2)
    assert got["workers"] == [0, 1, 0, 1]
    late = second("take", FOUR, 2)
    picture = (
        f"2 slices of v6e 2x4 present: 2 busy (tests-shared-1: job {got['job']}; tests-shared-2: job {got['job']})"
    )
    assert late["error"] == f"RT203 No whole slice within 2 s (slice_wait): {picture}."
    assert late["told"] == [picture]
    first("give")


def test_chips_held_outside_of_groups_are_busy(first, second):
    second("occupy", FOUR_NAMES[0], 1)
    assert first("look", FOUR) == {FOUR_NAMES[0]: "busy", FOUR_NAMES[1]: "free"}
    for _ in range(3):
        got = first("take", FOUR, 10)
        assert got.get("on") == [FOUR_NAMES[1]] * 2, got
        first("give")
    second("give")


def in_order(*drivers: Driver) -> list[Driver]:
    """The drivers that have answered, before those that have not, once one has."""
    answered, _, _ = select.select([one.process.stdout for one in drivers], [], [], 20)
    assert len(answered) == 1
    return sorted(drivers, key=lambda one: one.process.stdout not in answered)


def test_of_two_that_race_for_one_slice_one_gets_it_and_the_other_after_it(first, second):
    for _ in range(3):
        first.start("take", BIG, 30)
        second.start("take", BIG, 30)
        winner, loser = in_order(first, second)
        assert winner.answer()["on"] == [BIG_NAME] * 4
        time.sleep(1)
        assert not select.select([loser.process.stdout], [], [], 0)[0]
        winner("give")
        assert loser.answer()["on"] == [BIG_NAME] * 4
        loser("give")


def test_two_that_race_for_two_slices_each_share_nothing(first, second):
    for one in (first, second):
        one.start("take", TWO, 30)
    winner, loser = in_order(first, second)
    assert winner.answer()["on"] == sorted(FOUR_NAMES * 2)
    winner("give")
    assert loser.answer()["on"] == sorted(FOUR_NAMES * 2)
    loser("give")


def test_a_request_for_two_slices_that_gets_one_keeps_nothing(first, second):
    assert second("take", FOUR, 10)["on"] == [FOUR_NAMES[0]] * 2
    late = first("take", TWO, 3)
    assert "2 slices of v6e 2x4 present: 1 free, 1 busy" in late["error"]
    second("give")


def test_two_parts_of_one_slice_are_held_by_two_and_a_third_waits(mixed, first, second):
    ones = [first("take", PART, 30), second("take", PART, 30)]
    assert sorted(one["workers"] for one in ones) == [[0, 1], [2, 3]]
    assert [one["on"] for one in ones] == [[BIG_NAME] * 2] * 2
    with driver(mixed) as third:
        late = third("take", PART, 1)
        assert "2 parts 2x4 of v6e 4x4 present: 2 busy (tests-shared-0/0: job" in late["error"]
        late = third("take", BIG, 1)
        assert "1 slice of v6e 4x4 present: 1 busy" in late["error"]
        third.start("take", PART, 20)
        first("give")
        # Ray itself would hand out the part that is still held.
        assert third.answer()["workers"] == ones[0]["workers"]
    second("give")


def test_nobody_gets_a_part_of_a_slice_that_is_held(first, second):
    first("take", BIG, 20)
    assert "2 parts 2x4 of v6e 4x4 present: 2 busy" in second("take", PART, 1)["error"]
    first("give")


def test_a_job_keeps_its_slice_from_one_try_to_the_next(mixed, first, second, tmp_path):
    # Ray would take this shape for single hosts, and the workers of one job onto two of the three slices with it.
    (held,) = set(first("take", FOUR, 20)["on"])
    (free,) = set(FOUR_NAMES) - {held}
    trainer = Trainer(mixed, tmp_path)
    request = trainer.request("again", FOUR, "fails_once", failures=1, mark=str(tmp_path / "failed"))

    def wait_beside_it():
        wait_for(lambda: "setting up" in trainer.progress(request))
        second.start("take", FOUR, 100)
        wait_for(lambda: "PENDING" in first("left")["groups"], within_s=20)
        (tmp_path / "waiting").touch()

    beside = threading.Thread(target=wait_beside_it)
    beside.start()
    value = trainer.run(request)
    beside.join()

    assert (value["failures"], value["processes"], value["devices"]) == (1, 2, 8)
    assert value["metrics"]["on"] == int(free[-1])
    # Whoever waited all along comes after it, not between.
    assert second.answer()["on"] == [free] * 2
    second("give")
    first("give")


def test_a_killed_driver_leaves_nothing_whether_it_held_or_waited(mixed, first):
    with driver(mixed) as holder, driver(mixed) as waiter:
        assert holder("take", BIG, 10)["on"] == [BIG_NAME] * 4
        waiter.start("take", BIG, 60)
        wait_for(lambda: "PENDING" in first("left")["groups"])
        waiter.kill()
        wait_for(lambda: "PENDING" not in first("left")["groups"], within_s=15)
        assert first("left")["held"] == {"TPU": 16, "TPU-v6e-16-head": 1}
        holder.kill()
        assert first("take", BIG, 20)["on"] == [BIG_NAME] * 4
        first("give")


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.long)])
def test_random_reservations_leak_nothing(first, record_property, count):
    done = first("churn", 3, count, [BIG, FOUR, EIGHT, TWO])
    assert done["wrong"] == []
    record_property("seconds", done["s"])


def test_a_slice_with_a_dead_host_is_never_taken_while_a_good_one_is_there(mixed, first):
    mixed.kill_host(1, 1)
    wait_for(lambda: first("look", FOUR) == {FOUR_NAMES[0]: "broken", FOUR_NAMES[1]: "free"}, within_s=10)
    for _ in range(4):
        got = first("take", FOUR, 10)
        assert got["on"] == [FOUR_NAMES[1]] * 2
        first("give")


def test_a_reservation_that_was_never_possible_names_the_missing_host(first, second):
    assert second("take", FOUR, 10)["on"] == [FOUR_NAMES[1]] * 2
    broken = "1 busy, 1 broken (tests-shared-1: host 1 of 2 missing; tests-shared-2: job "
    assert broken in first("take", FOUR, 2)["error"]
    second("give")
    assert "1 free, 1 broken (tests-shared-1: host 1 of 2 missing)" in first("take", TWO, 2)["error"]


def test_a_slice_that_lies_costs_a_try_and_leaves_nothing(first):
    # As if the host died between the look and the claim: two slices are promised and only one is whole.
    first("lie")
    late = first("take", TWO, 4)
    first("truth")
    assert late["error"].startswith("RT203 No whole slice within 4 s (slice_wait)")
