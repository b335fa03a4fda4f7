"""What is left where a simulated cluster's supervisor was killed, or hangs: all of it goes, and nothing of others."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_raytpu.backends import reaping
from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.processes import MARK, wait_until
from airflow_raytpu.backends.simulated.state import Phase
from airflow_raytpu.model.observation import ClusterState
from airflow_raytpu.model.orphans import Fate, Reaped
from airflow_raytpu.model.request import RayRequest
from tests.simulated_cluster import FIXED, cluster_request, processes_of, short_folder, wait_until_settled

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

HOUR = 3600.0
TTL_S = 1000.0
"""Longer than this takes: no supervisor ends its cluster by itself."""


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with short_folder() as folder:
        yield cluster.root_folder(folder / "r")


@pytest.fixture(scope="module")
def clusters(root: Path) -> Iterator[dict[str, tuple[RayRequest, Cluster]]]:
    """Three clusters of one host each, all up; one is another deployment's."""
    requests = {name: cluster_request(name, "v6e:2x2", ttl_s=TTL_S) for name in ("killed", "hangs", "theirs")}
    theirs = requests["theirs"]
    requests["theirs"] = replace(theirs, identity=replace(theirs.identity, deployment="another"))
    started = [cluster.start(root, request, arrivals=FIXED) for request in requests.values()]
    try:
        found = {name: (request, wait_until_settled(root, request)) for name, request in requests.items()}
        assert {each.record.phase for _, each in found.values()} == {Phase.READY}
        yield found
    finally:
        for each in started:
            cluster.remove(each)


def reap(root: Path, *, dry_run: bool = False) -> list[Reaped]:
    async def run() -> list[Reaped]:
        backend = SimulatedBackend(root)
        try:
            return await reaping.reap(backend, "tests", HOUR, dry_run=dry_run)
        finally:
            await backend.close()

    return asyncio.run(run())


def is_ready(root: Path, request: RayRequest) -> bool:
    async def look() -> bool:
        backend = SimulatedBackend(root)
        try:
            return (await backend.observe(request)).cluster is ClusterState.READY
        finally:
            await backend.close()

    return asyncio.run(look())


def silent_for(found: Cluster, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(found.folder / "heartbeat", (at, at))


def test_all_that_is_left_of_silent_clusters_goes_and_another_deployments_stays(
    root: Path, clusters: dict[str, tuple[RayRequest, Cluster]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, killed), (_, hangs), (their_request, theirs) = clusters.values()
    monkeypatch.setattr(cluster, "remove", functools.partial(cluster.remove, within_s=2.0))
    assert reap(root) == []  # all are looked at

    # As a program of the user's would be, that left its session before its cluster's supervisor was killed.
    stray = subprocess.Popen(["setsid", "sleep", "1000"], env={**os.environ, MARK: killed.record.uid})
    assert killed.record.supervisor is not None
    assert killed.record.supervisor.signal(signal.SIGKILL)
    assert wait_until(lambda: bool(killed.lost), within_s=30)  # a process takes a while to die
    assert hangs.record.supervisor is not None
    assert hangs.record.supervisor.signal(signal.SIGSTOP)
    assert reap(root) == []  # whoever looked a moment ago is about to find out
    for each in (killed, hangs, theirs):
        silent_for(each, 2 * HOUR)

    shown = reap(root, dry_run=True)
    assert {(each.orphan.name, each.orphan.why, each.fate) for each in shown} == {
        (killed.record.name, "its supervisor died", Fate.FOUND),
        (hangs.record.name, "ready", Fate.FOUND),
    }
    assert stray.poll() is None
    assert len(processes_of(hangs)) > 5

    gone = reap(root)
    assert {(each.orphan.name, each.fate) for each in gone} == {
        (killed.record.name, Fate.REAPED),
        (hangs.record.name, Fate.REAPED),
    }
    assert stray.wait(10) == -signal.SIGKILL
    for each in (killed, hangs):
        assert processes_of(each) == []
        assert not each.folder.exists()
    assert [path.name for path in root.iterdir()] == [theirs.record.name]
    assert is_ready(root, their_request)
    assert reap(root) == []
