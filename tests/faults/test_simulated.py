"""Faults of simulated clusters: nothing survives its supervisor, nobody's cluster is another's, and loss is seen.

Small slices of one host each; every cluster here serves several faults, for starting one is what costs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from airflow_raytpu.backends.simulated import cluster, state
from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.backends.simulated.state import Phase
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.request import RayRequest
from tests.simulated_cluster import (
    FIXED,
    beating,
    cluster_request,
    head_of,
    job_request,
    processes_of,
    short_folder,
    stage_files,
    wait_for,
    wait_until_settled,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SMALL = "v6e:2x2"
CREATE = """
import json, sys
from pathlib import Path
from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.model.request import RayRequest
input()
print(cluster.start(Path(sys.argv[1]), RayRequest.from_dict(json.loads(sys.argv[2]))).record.uid)
"""
# A user's program that leaves a process behind in a session of its own, with an empty environment.
STRAY = """
import subprocess, sys, time
subprocess.Popen(["env", "-i", "setsid", "sleep", "987654"], close_fds=True)
open(sys.argv[1].removeprefix("file://") + ".up", "w").close()
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with short_folder() as folder:
        yield cluster.root_folder(folder / "r")


def observe(root: Path, request: RayRequest) -> Observation:
    async def look() -> Observation:
        backend = SimulatedBackend(root)
        try:
            return await backend.observe(request)
        finally:
            await backend.close()

    return asyncio.run(look())


def created_by_many(root: Path, request: RayRequest, processes: int) -> set[str]:
    """Uids of the clusters that as many processes at once found or made."""
    command = [sys.executable, "-c", CREATE, str(root), json.dumps(request.to_dict())]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return {process.communicate(timeout=120)[0].strip() for process in running}


def strays() -> list[ProcessId]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            process = ProcessId.of(int(entry.name))
            if b"987654" in words and process is not None:
                found.append(process)
    return found


def gone(found: Cluster) -> bool:
    return processes_of(found) == [] and not any(host.launcher and host.launcher.alive() for host in hosts(found))


def hosts(found: Cluster) -> list:
    return [host for part in found.record.slices for host in part.hosts]


def kill_supervisor(found: Cluster) -> None:
    assert found.record.supervisor is not None
    assert found.record.supervisor.signal(signal.SIGKILL)


@dataclass
class Pair:
    first: RayRequest
    second: RayRequest
    found: list[Cluster]
    neglect_second: Callable[[], None]


@pytest.fixture(scope="module")
def pair(root: Path) -> Iterator[Pair]:
    """Two clusters that were started at the same time; the second by four processes at once."""
    first, second = cluster_request("first", SMALL, ttl_s=120), cluster_request("second", SMALL, ttl_s=5)
    with beating(root, second, every_s=0.2) as neglected:
        cluster.start(root, first)
        assert len(created_by_many(root, second, 4)) == 1
        found = [wait_until_settled(root, request) for request in (first, second)]
        assert [each.record.phase for each in found] == [Phase.READY, Phase.READY]
        yield Pair(first, second, found, neglected.set)


def test_clusters_of_one_machine_do_not_clash(pair: Pair) -> None:
    first, second = pair.found
    for one, other in zip(first.record.facts().values(), second.record.facts().values(), strict=True):
        assert one != other
    assert first.token() != second.token()
    assert {host.ip for host in hosts(first)}.isdisjoint(host.ip for host in hosts(second))


def test_a_killed_supervisor_leaves_no_process(pair: Pair, root: Path, tmp_path: Path) -> None:
    first, request = pair.found[0], pair.first
    code = stage_files(
        {
            "airflow_raytpu/__init__.py": "",
            "airflow_raytpu/runtime/__init__.py": "",
            "airflow_raytpu/runtime/__main__.py": STRAY,
        },
        tmp_path,
    )
    job = job_request("stray", tmp_path / "storage", code, on=request)
    backend = SimulatedBackend(root)

    async def submit() -> None:
        assert await backend.ensure(job)
        await backend.close()

    asyncio.run(submit())
    wait_for(lambda: Path(job.outbox("request").removeprefix("file://") + ".up").exists() and strays())
    kill_supervisor(first)
    wait_for(lambda: gone(first))
    assert wait_for(lambda: not strays())
    seen = observe(root, job)
    assert (seen.cluster, seen.job) == (ClusterState.ABSENT, JobState.ABSENT)
    assert "died" in seen.detail
    # The neighbour has not noticed.
    assert observe(root, pair.second).cluster is ClusterState.READY
    assert cluster.sweep(root) == [request.name]
    assert cluster.attach(root, request.name) is None


def test_a_cluster_that_nobody_looks_at_ends_after_its_ttl(pair: Pair, root: Path) -> None:
    second = pair.found[1]
    assert observe(root, pair.second).cluster is ClusterState.READY
    pair.neglect_second()
    wait_for(lambda: not second.folder.exists())
    wait_for(lambda: gone(second))
    assert observe(root, pair.second).cluster is ClusterState.ABSENT
    wait_for(lambda: list(root.iterdir()) == [])


@pytest.fixture(scope="module")
def third(root: Path) -> tuple[Cluster, RayRequest]:
    """A cluster whose head and host were killed once, while they started."""
    request = cluster_request("third", SMALL, ttl_s=120)
    found = cluster.start(root, request, arrivals=FIXED)
    for launcher in wait_for(lambda: len(children := launchers(found)) == 2 and children, every_s=0.01):
        assert launcher.signal(signal.SIGKILL)
    return wait_until_settled(root, request), request


def launchers(found: Cluster) -> list[ProcessId]:
    """The processes that each own a Ray node of *found*, also one that is just being started."""
    record = state.read(found.folder)
    if record is None or record.supervisor is None:
        return []
    children = psutil.Process(record.supervisor.pid).children()
    return [each for child in children if (each := ProcessId.of(child.pid))]


def test_a_node_that_dies_while_it_starts_is_started_again(third: tuple[Cluster, RayRequest], root: Path) -> None:
    found, request = third
    assert found.record.phase is Phase.READY, found.record.detail
    assert observe(root, request).cluster is ClusterState.READY
    assert (found.folder / "supervisor.log").read_text().count("It is launched again.") == 2


def test_a_lost_host_breaks_its_slice(third: tuple[Cluster, RayRequest], root: Path) -> None:
    found, request = third
    (host,) = hosts(found)
    os.kill(host.raylet, signal.SIGKILL)
    seen = wait_for(lambda: (seen := observe(root, request)).cluster is not ClusterState.READY and seen)
    assert seen.cluster is ClusterState.FAILED
    assert seen.detail == f"slice {found.record.slices[0].name} lost host 0 of 1"
    # As with a pod, nothing of the host is left, and the head lives on.
    assert not host.launcher.alive()
    assert found.record.supervisor is not None
    assert found.record.supervisor.alive()


def test_a_lost_head_fails_the_cluster_and_ends_the_rest(third: tuple[Cluster, RayRequest], root: Path) -> None:
    found, request = third
    assert head_of(found).signal(signal.SIGKILL)
    wait_for(lambda: gone(found))
    failed = wait_until_settled(root, request)
    assert failed.record.phase is Phase.FAILED
    seen = observe(root, request)
    assert (seen.cluster, seen.reachable) == (ClusterState.FAILED, True)
    assert "head died" in seen.detail
    assert "supervisor.log" in seen.detail


def test_deleting_leaves_nothing(third: tuple[Cluster, RayRequest], root: Path) -> None:
    failed, request = third
    backend = SimulatedBackend(root)

    async def begin_again_and_delete() -> Cluster:
        await backend.delete(request)
        assert os.listdir(root) == []  # noqa: PTH208
        await backend.ensure(request)
        starting = await asyncio.to_thread(
            wait_for, lambda: (now := cluster.attach(root, request.name)) and processes_of(now) and now
        )
        # In the middle of its start, which is the hardest moment.
        await backend.delete(request)
        await backend.close()
        return starting

    starting = asyncio.run(begin_again_and_delete())
    assert starting.record.uid != failed.record.uid
    assert processes_of(starting) == []
    assert list(root.iterdir()) == []


def test_a_folder_that_is_taken_away_ends_its_cluster(root: Path) -> None:
    request = cluster_request("fourth", SMALL)
    cluster.start(root, request)
    found = wait_for(lambda: (now := cluster.attach(root, request.name)) and processes_of(now) and now)
    found.folder.rename(root / "elsewhere")
    wait_for(lambda: not processes_of(found))
