"""Simulated clusters that nobody looks after, without any Ray: supervisors are stand-ins, or dead."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated import cluster, orphans, state
from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.processes import MARK, ProcessId
from airflow_raytpu.backends.simulated.state import Phase
from airflow_raytpu.model.errors import ClusterError
from airflow_raytpu.model.orphans import SKEW_S
from airflow_raytpu.model.request import RayRequest
from tests.simulated_cluster import cluster_request

HOUR = 3600.0
REQUEST = cluster_request("cluster", "v6e:2x2")
DEAD = ProcessId(pid=2**22 - 1, began="boot:1")


pytestmark = pytest.mark.usefixtures("no_supervisor")


def made(root: Path, request: RayRequest = REQUEST, silent_s: float = 2 * HOUR, **changes: object) -> Cluster:
    """A cluster that was made long ago and looked at *silent_s* seconds ago."""
    found = cluster.start(root, request)
    record = replace(found.record, created_at=1.0, **changes)  # type: ignore[arg-type]
    state.write(found.folder, record)
    silence(found.folder, silent_s)
    return Cluster(found.folder, record)


def silence(folder: Path, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(folder / "heartbeat", (at, at))


def of(deployment: str, task_id: str = "cluster") -> RayRequest:
    return replace(REQUEST, identity=replace(REQUEST.identity, deployment=deployment, task_id=task_id))


async def test_a_cluster_whose_supervisor_died_goes_with_its_processes(backend: SimulatedBackend, root: Path) -> None:
    found = made(root, supervisor=DEAD, phase=Phase.READY)
    left = await asyncio.create_subprocess_exec("sleep", "1000", env={**os.environ, MARK: found.record.uid})
    (orphan,) = await backend.orphans("tests", HOUR)
    assert (orphan.kind, orphan.name, orphan.owner) == ("cluster", REQUEST.name, REQUEST.identity)
    assert orphan.why == "its supervisor died"
    assert left.returncode is None
    assert found.folder.is_dir()
    assert await backend.reap(orphan)
    assert await left.wait() == -9
    assert list(root.iterdir()) == []
    assert await backend.reap(orphan)


@pytest.mark.parametrize(
    ("supervisor", "phase", "why"),
    [
        (ProcessId.own(), Phase.READY, "ready"),
        (ProcessId.own(), Phase.STOPPING, "stopping"),
        (None, Phase.STARTING, "starting"),
        (DEAD, Phase.FAILED, "failed"),
    ],
)
async def test_whatever_is_silent_past_its_time_is_found(
    backend: SimulatedBackend, root: Path, supervisor: ProcessId | None, phase: Phase, why: str
) -> None:
    found = made(root, replace(REQUEST, ttl_s=1000.0), supervisor=supervisor, phase=phase)
    assert [each.why for each in await backend.orphans("tests", HOUR)] == [why]
    silence(found.folder, 1000.0 + SKEW_S / 2)
    assert await backend.orphans("tests", 0.0) == []
    silence(found.folder, HOUR - 60)
    assert await backend.orphans("tests", HOUR) == []


async def test_a_dead_cluster_need_not_wait_for_its_time_to_live(backend: SimulatedBackend, root: Path) -> None:
    found = made(root, replace(REQUEST, ttl_s=99 * HOUR), supervisor=DEAD, phase=Phase.READY)
    assert len(await backend.orphans("tests", HOUR)) == 1
    # Whoever looks at it is about to count the loss and make it anew.
    found.beat()
    assert await backend.orphans("tests", 0.0) == []


@pytest.mark.parametrize("ahead_s", [1.0, SKEW_S, 99 * HOUR])
async def test_a_clock_that_was_set_back_kills_nothing(backend: SimulatedBackend, root: Path, ahead_s: float) -> None:
    made(root, silent_s=-ahead_s, supervisor=ProcessId.own(), phase=Phase.READY)
    assert await backend.orphans("tests", 0.0) == []


async def test_what_is_another_deployments_stays(backend: SimulatedBackend, root: Path) -> None:
    for index, other in enumerate(("tests2", "tests|tests", "TESTS", "")):
        made(root, of(other, f"c{index}"), supervisor=DEAD, phase=Phase.READY)
    assert await backend.orphans("tests", 0.0) == []
    assert [each.owner.deployment for each in await backend.orphans("tests2", 0.0)] == ["tests2"]
    assert len(list(root.iterdir())) == 4


async def test_who_looked_between_the_list_and_the_end_keeps_it(backend: SimulatedBackend, root: Path) -> None:
    found = made(root, supervisor=DEAD, phase=Phase.READY)
    (orphan,) = await backend.orphans("tests", HOUR)
    found.beat()
    assert not await backend.reap(orphan)
    assert found.folder.is_dir()


async def test_a_newer_cluster_of_the_same_name_stays(backend: SimulatedBackend, root: Path) -> None:
    former = made(root, supervisor=DEAD, phase=Phase.READY)
    (orphan,) = await backend.orphans("tests", HOUR)
    cluster.remove(former)
    newer = made(root)
    assert await backend.reap(orphan)
    assert cluster.attach(root, REQUEST.name) == newer


@pytest.mark.parametrize("prefix", [".trash-", ".new-"])
async def test_folders_left_half_way_are_told_by_what_is_written_in_them(
    backend: SimulatedBackend, root: Path, prefix: str
) -> None:
    ours = made(root).folder.rename(root / f"{prefix}ours")
    made(root, of("another")).folder.rename(root / f"{prefix}theirs")
    (root / f"{prefix}nobodys").mkdir()
    (orphan,) = await backend.orphans("tests", HOUR)
    assert (orphan.kind, orphan.name, orphan.why) == ("folder", f"{prefix}ours", "left half-way")
    silence(ours, 10)
    assert await backend.orphans("tests", 0.0) == []
    silence(ours, 2 * HOUR)
    (orphan,) = await backend.orphans("tests", HOUR)
    assert await backend.reap(orphan)
    assert sorted(path.name for path in root.iterdir()) == [f"{prefix}nobodys", f"{prefix}theirs"]


async def test_what_cannot_be_read_or_contradicts_itself_stays(backend: SimulatedBackend, root: Path) -> None:
    for index, identity in enumerate(({}, {**REQUEST.identity.to_dict(), "run_id": "x"}, {"deployment": "tests"})):
        made(root, of("tests", f"c{index}"), supervisor=DEAD, phase=Phase.READY, identity=identity)
    (made(root, supervisor=DEAD).folder / "state.json").write_text('{"name": "clus')
    (root / "thesis.txt").touch()
    (root / "link").symlink_to(root)
    assert await backend.orphans("tests", 0.0) == []
    assert len(list(root.iterdir())) == 6


async def test_a_folder_without_its_heartbeat_is_as_old_as_its_cluster(backend: SimulatedBackend, root: Path) -> None:
    found = made(root, supervisor=DEAD, phase=Phase.READY)
    (found.folder / "heartbeat").unlink()
    assert len(await backend.orphans("tests", HOUR)) == 1
    state.write(found.folder, replace(found.record, created_at=time.time()))
    assert await backend.orphans("tests", 0.0) == []


async def test_a_folder_that_does_not_go_is_an_error(
    backend: SimulatedBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = made(root, supervisor=DEAD, phase=Phase.READY)
    (orphan,) = await backend.orphans("tests", HOUR)
    monkeypatch.setattr(orphans.cluster, "discard", lambda folder: None)
    with pytest.raises(ClusterError, match=f"{found.folder} does not go"):
        await backend.reap(orphan)
