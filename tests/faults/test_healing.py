"""Slices that come later than their cluster, and slices that come back: as a whole, and under another name.

One cluster for all; the tests run in this order, and the last one leaves it dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

import psutil
import pytest

from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.backends.simulated.processes import NODES, ProcessId, writers
from airflow_raytpu.backends.simulated.state import Arrivals, Slice
from airflow_raytpu.model.observation import ClusterState
from airflow_raytpu.model.slices import SliceState
from tests.faults.test_placement import Driver, driver
from tests.simulated_cluster import SimulatedCluster, processes_of, running_cluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

FOUR = "v6e:2x4@ct6e-standard-4t"
LATE = 0
"""Which slice of the cluster is the one that comes later, is lost and comes back."""

Picture = list[tuple[str, str, tuple[int, ...]]]


@pytest.fixture(scope="module")
def late() -> Iterator[SimulatedCluster]:
    """A cluster that has no slice yet."""
    with running_cluster(FOUR, arrivals=Arrivals(heal_s=1.0, late=None)) as found:
        yield found


@pytest.fixture(scope="module")
def first(late: SimulatedCluster) -> Iterator[Driver]:
    with driver(late) as found:
        yield found


@pytest.fixture(scope="module")
def second(late: SimulatedCluster) -> Iterator[Driver]:
    with driver(late) as found:
        yield found


def look(late: SimulatedCluster) -> tuple[ClusterState, list[SliceState]]:
    async def read() -> tuple[ClusterState, list[SliceState]]:
        backend = SimulatedBackend(late.root)
        try:
            return (await backend.observe(late.request)).cluster, await backend.slices(late.request.name)
        finally:
            await backend.close()

    return asyncio.run(read())


def picture(late: SimulatedCluster) -> Picture:
    return [(state.name, state.condition.value, state.present) for state in look(late)[1]]


def part(late: SimulatedCluster) -> Slice:
    return late.slices()[LATE]


def being_made(late: SimulatedCluster, after: str) -> list[ProcessId]:
    """Processes of a host of the slice that follows *after*, from when they run until it is whole."""
    now = part(late)
    made = now.name != after and now.awaited
    return list(writers(late.found.folder / NODES / f"{LATE}.0")) if made else []


def launcher(late: SimulatedCluster, process: ProcessId) -> psutil.Process:
    """The child of the supervisor that *process* came of."""
    line = [found := psutil.Process(process.pid), *found.parents()]
    return next(each for each in line if each.ppid() == late.found.record.supervisor.pid)


def test_a_cluster_may_be_ready_before_its_slices(late):
    assert look(late)[0] is ClusterState.READY
    assert picture(late) == [("tests-shared-0", "starting", ())]
    assert late.facts["slices"][0]["whole"] is False


def test_a_reservation_that_waits_says_what_it_sees_and_gets_the_slice_that_comes(late, first, second):
    first.start("take", FOUR, 60)
    wait_for(lambda: second("left")["groups"] == ["PENDING"], within_s=20)
    late.make_awaited()
    got = first.answer()
    assert got["on"] == ["tests-shared-0"] * 2
    assert got["workers"] == [0, 1]
    assert got["told"][0] == "no slice of v6e 2x4 present"
    # The driver may be faster than the supervisor's own proof.
    wait_for(lambda: picture(late) == [("tests-shared-0", "busy", (0, 1))])


def test_a_lost_host_takes_its_slice_with_it_and_the_slice_comes_back_whole_under_another_name(late, first, second):
    before = part(late)
    late.kill_host(LATE, 1)
    assert wait_for(lambda: picture(late)[0][1] == "starting")
    # The waiting one does not know the new name, and the holder lost what it had.
    second.start("take", FOUR, 60)
    first("give")
    assert second.answer()["on"] == ["tests-shared-1"] * 2
    wait_for(lambda: picture(late) == [("tests-shared-1", "busy", (0, 1))])
    after = part(late)
    assert (after.whole, after.awaited) == (True, "")
    assert not any(host.launcher.alive() for host in before.hosts)
    assert look(late)[0] is ClusterState.READY
    assert cluster.attach(late.root, late.request.name).record.detail == ""
    second("give")


def test_what_does_not_come_up_is_tried_again(late, first):
    before = part(late)
    late.kill_host(LATE, 0)
    assert wait_for(lambda: being_made(late, before.name))
    coming = part(late)

    def given_up() -> bool:
        # One that dies while it starts is launched again, and not for ever.
        for process in being_made(late, before.name) if part(late).name == coming.name else ():
            with contextlib.suppress(psutil.NoSuchProcess, StopIteration):
                launcher(late, process).kill()
        return part(late).name != coming.name

    wait_for(given_up)

    def whole_again() -> str:
        ((name, condition, present),) = picture(late)
        return name if name not in {before.name, coming.name} and (condition, present) == ("idle", (0, 1)) else ""

    name = wait_for(whole_again)
    got = first("take", FOUR, 20)
    assert got["on"] == [name] * 2
    first("give")
    wait_for(lambda: first("left") == {"groups": [], "held": {}}, within_s=10)


@pytest.mark.long
def test_a_supervisor_that_is_killed_while_it_makes_a_slice_leaves_nothing(late, first, second):
    for one in (first, second):
        # Drivers log into the head's folder, and would be taken for its processes.
        one.kill()
    before = part(late)
    late.kill_host(LATE, 0)
    running = wait_for(lambda: being_made(late, before.name))
    assert late.found.record.supervisor.signal(signal.SIGKILL)
    wait_for(lambda: processes_of(late.found) == [])
    assert not any(process.alive() for process in running)
    assert "died" in cluster.attach(late.root, late.request.name).lost
    assert cluster.sweep(late.root) == [late.request.name]
