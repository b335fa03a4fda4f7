"""The one simulated cluster that all tests share, and what tests need to use it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.processes import ProcessId, members
from airflow_raytpu.backends.simulated.state import Arrivals, Phase, Slice
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import Observation
from airflow_raytpu.model.request import Kind, RayRequest

FIXED = Arrivals()
"""All slices come with the cluster, and what breaks stays broken."""

START_WITHIN_S = 150.0
TTL_S = 60.0


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A private folder whose path leaves room for Unix sockets, which pytest's own does not."""
    folder = Path(tempfile.mkdtemp(prefix="rp", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cluster_request(task_id: str, tpu_slice: str, *, ttl_s: float = TTL_S, dag_id: str = "tests") -> RayRequest:
    return RayRequest(
        identity=Identity(deployment="tests", dag_id=dag_id, task_id=task_id, run_id="run"),
        kind=Kind.CLUSTER,
        slice=tpu_slice,
        storage="file:///nowhere",
        limits=Deadlines().since(time.time()),
        ttl_s=ttl_s,
    )


def job_request(
    task_id: str, storage: Path, code: str, *, on: RayRequest | None = None, attempt: int = 1, **changes: Any
) -> RayRequest:
    """A training request; on a cluster of its own where *on* is left out."""
    return RayRequest(
        **{
            "identity": Identity(deployment="tests", dag_id="tests", task_id=task_id, run_id="run", attempt=attempt),
            "kind": Kind.TRAIN,
            "slice": "" if on else "v6e:2x2",
            "storage": storage.as_uri(),
            "limits": Deadlines().since(time.time()),
            "cluster": on.name if on else None,
            "code": code,
            "ttl_s": TTL_S,
            **changes,
        }
    )


def stage_files(files: Mapping[str, str], folder: Path) -> str:
    """A zip of *files*, as staging makes them; its URI."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "code.zip"
    with zipfile.ZipFile(path, "w") as archive:
        # Ray strips the top folder of a remote zip that has just one (2.60).
        for name, text in {"top": "", **files}.items():
            archive.writestr(name, text)
    return path.as_uri()


def wait_for(condition: Any, within_s: float = 60.0, every_s: float = 0.1) -> Any:
    """What *condition* gives once that is true.

    :raises TimeoutError: it was not within *within_s* seconds.
    """
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition} was not true within {within_s} s")
        time.sleep(every_s)
    return value


def wait_until_settled(root: Path, request: RayRequest, within_s: float = START_WITHIN_S) -> Cluster:
    """The cluster once it is ready, or has failed."""

    def settled() -> Cluster | None:
        found = cluster.attach(root, request.cluster_name)
        assert found is not None
        assert not found.lost
        found.beat()
        return found if found.record.phase in {Phase.READY, Phase.FAILED} else None

    return wait_for(settled, within_s)


def start_ready(root: Path, request: RayRequest, also: Sequence[str] = (), arrivals: Arrivals = FIXED) -> Cluster:
    cluster.start(root, request, also, arrivals)
    found = wait_until_settled(root, request)
    assert found.record.phase is Phase.READY, found.record.detail
    return found


def processes_of(found: Cluster) -> list[ProcessId]:
    return list(members(found.record.uid, found.folder))


def head_of(found: Cluster) -> ProcessId:
    """The process without which there is no head, Ray's GCS."""
    (head,) = [each for each in processes_of(found) if _name(each).startswith("gcs_serv")]
    return head


def _name(process: ProcessId) -> str:
    try:
        return Path(f"/proc/{process.pid}/comm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it has ended since


@dataclass(frozen=True)
class SimulatedCluster:
    """A ready cluster.

    :param root: the backend's root: ``SimulatedBackend(root)``.
    :param request: the request it was made for; its ``name`` is the ``cluster`` of jobs on it.
    """

    root: Path
    request: RayRequest
    found: Cluster

    @property
    def facts(self) -> dict[str, Any]:
        return self.found.record.facts()

    def driver_environment(self) -> dict[str, str]:
        """For a driver that a test starts itself, in a subprocess."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "HOME": str(self.found.folder / "home"),
            "RAY_ADDRESS": self.facts["address"],
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.found.folder / "token"),
            "RAYTPU_ENDPOINT": self.facts["endpoint"],
            "RAY_USAGE_STATS_ENABLED": "0",
            "JAX_PLATFORMS": "cpu",
        }

    def run(self, request: RayRequest, within_s: float = 120.0) -> Observation:
        """Submit *request* and look until its job has ended; the last look."""

        async def to_the_end() -> Observation:
            backend = SimulatedBackend(self.root)
            try:
                async with asyncio.timeout(within_s):
                    while not await backend.ensure(request):
                        await asyncio.sleep(0.2)
                    while True:
                        seen = await backend.observe(request)
                        if seen.job is not None and seen.job.ended:
                            return seen
                        await asyncio.sleep(0.2)
            finally:
                await backend.close()

        return asyncio.run(to_the_end())

    def slices(self) -> list[Slice]:
        """The slices as the supervisor has them now; the requested shape comes first."""
        now = cluster.attach(self.root, self.request.name)
        assert now is not None
        return list(now.record.slices)

    def kill_host(self, slice_index: int, worker_id: int) -> None:
        """Kill one host's raylet, as a preemption does, and return once nothing of the host is left."""
        host = self.slices()[slice_index].hosts[worker_id]
        assert host.alive  # and no pid 0, which would mean this very process and its group
        assert host.raylet
        os.kill(host.raylet, signal.SIGKILL)
        wait_for(lambda: not self.slices()[slice_index].hosts[worker_id].alive)

    def make_awaited(self) -> None:
        """Have the supervisor make at once whatever slice is awaited."""
        supervisor = self.found.record.supervisor
        assert supervisor is not None
        assert supervisor.signal(signal.SIGUSR1)

    def log(self, request: RayRequest) -> str:
        """The whole log of a job that has ended."""

        async def read() -> str:
            backend = SimulatedBackend(self.root)
            try:
                return "\n".join([line.text async for line in backend.tail(request)])
            finally:
                await backend.close()

        return asyncio.run(read())


@contextlib.contextmanager
def beating(root: Path, request: RayRequest, every_s: float = TTL_S / 6) -> Iterator[threading.Event]:
    """A sign of life for the cluster again and again, until the event is set or the block ends."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(every_s):
            Cluster(root / request.cluster_name, None).beat()  # type: ignore[arg-type]

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield done
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def running_cluster(
    tpu_slice: str = "v6e:4x4", also: Sequence[str] = (), arrivals: Arrivals = FIXED
) -> Iterator[SimulatedCluster]:
    """A ready cluster that is kept alive meanwhile, and after which nothing is left.

    :param also: further slices of any shape beside it, ``running_cluster("v6e:2x2", also=["v6e:4x4"])``.
    :param arrivals: how slices come and come back; by default what breaks stays broken.
    """
    with short_folder() as root:
        request = cluster_request("shared", tpu_slice)
        found = start_ready(root, request, also, arrivals)
        try:
            with beating(root, request):
                yield SimulatedCluster(root, request, found)
        finally:
            cluster.remove(found)
            assert processes_of(found) == []
