"""The live picture of a real cluster of mixed shapes: idle, held outside of groups, and after hosts were killed.

One cluster for all; the tests run in this order, and each leaves it worse than it found it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.model.slices import SliceState, describe
from tests.simulated_cluster import SimulatedCluster, running_cluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

FOUR = "v6e:2x4@ct6e-standard-4t"
DRIVER = """
import ray, time
ray.init(log_to_driver=False)
@ray.remote(resources={"TPU": 4}, label_selector={"ray.io/tpu-slice-name": "tests-shared-0"})
class Actor:
    def here(self):
        return True
@ray.remote(resources={"TPU": 1}, label_selector={"ray.io/tpu-slice-name": "tests-shared-2"})
def task():
    time.sleep(1000)
actor = Actor.remote()
ray.get(actor.here.remote())
running = task.remote()
print("held", flush=True)
input()
"""


@pytest.fixture(scope="module")
def mixed() -> Iterator[SimulatedCluster]:
    """Two ``2x2`` and one ``2x4`` on two hosts."""
    with running_cluster("v6e:2x2", also=("v6e:2x2", FOUR)) as found:
        yield found


def look(mixed: SimulatedCluster) -> list[SliceState]:
    async def read() -> list[SliceState]:
        backend = SimulatedBackend(mixed.root)
        try:
            return await backend.slices(mixed.request.name)
        finally:
            await backend.close()

    return asyncio.run(read())


def conditions(mixed: SimulatedCluster) -> list[str]:
    return [state.condition.value for state in look(mixed)]


def command(mixed: SimulatedCluster, *arguments: str) -> str:
    environment = {**os.environ, "RAYTPU_SIM_ROOT": str(mixed.root), "FORCE_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "airflow_raytpu.cli", "slices", "--cluster", mixed.request.name, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_slice_is_there_in_its_own_shape(mixed: SimulatedCluster) -> None:
    assert [(state.name, state.shape, state.present) for state in look(mixed)] == [
        ("tests-shared-0", "v6e:2x2", (0,)),
        ("tests-shared-1", "v6e:2x2", (0,)),
        ("tests-shared-2", FOUR, (0, 1)),
    ]
    assert conditions(mixed) == ["idle"] * 3


def test_what_is_held_outside_of_groups_is_busy_until_its_driver_ends(mixed: SimulatedCluster) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        env=mixed.driver_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "held\n"
        wait_for(lambda: conditions(mixed) == ["busy", "idle", "busy"], within_s=20)
        assert describe(look(mixed)) == "3 present, 1 idle, 2 busy (job 01000000; job 01000000)"
        driver.kill()
    wait_for(lambda: conditions(mixed) == ["idle"] * 3, within_s=30)


def test_the_command_shows_it_in_80_columns_and_without_colour(mixed: SimulatedCluster) -> None:
    text = command(mixed)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "v6e 2x4 (4t)" in text
    assert "##" in text
    rows = json.loads(command(mixed, "--output", "json"))
    assert [(row["slice"], row["state"]) for row in rows] == [(state.name, "idle") for state in look(mixed)]


@pytest.mark.parametrize(("part", "worker", "fault"), [(2, 1, "host 1 of 2 missing"), (0, 0, "host 0 of 1 missing")])
def test_a_killed_host_is_seen_within_seconds(mixed: SimulatedCluster, part: int, worker: int, fault: str) -> None:
    mixed.kill_host(part, worker)
    killed = time.time()
    broken = wait_for(lambda: (state := look(mixed)[part]).condition.value == "broken" and state, within_s=10)
    assert (broken.fault, broken.missing) == (fault, (worker,))
    assert broken.since == pytest.approx(killed, abs=10)


def test_the_command_shows_what_is_missing(mixed: SimulatedCluster) -> None:
    rows = [" ".join(line.split()) for line in command(mixed).splitlines()]
    assert any("v6e 2x4 (4t) #. broken" in row for row in rows)
    assert any("v6e 2x2 # idle -" in row for row in rows)
