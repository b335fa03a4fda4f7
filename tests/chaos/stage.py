"""Where the rounds play: one real Airflow, one shared simulated cluster that heals, and a folder for their files."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.processes import ProcessId, members
from airflow_raytpu.backends.simulated.state import Arrivals, Phase, Record
from airflow_raytpu.demo import processes
from airflow_raytpu.model.errors import BackendUnreachable, PlaceError
from tests.airflow_faults import component, kill, trigger
from tests.chaos.draw import ONE_HOST, TWO_HOSTS
from tests.chaos.outside import AirflowTables, RayTables, ask
from tests.postgres import better_database
from tests.real_airflow import RealAirflow, Run, healthy, real_airflow
from tests.simulated_cluster import beating, cluster_request, short_folder, start_ready, wait_for

HEARTBEAT_TIMEOUT_S = 40
HEAL_S = 3.0
SHARED, ALSO = ONE_HOST, (ONE_HOST, TWO_HOSTS)
PARTS = 6

COMPONENTS = ("scheduler", "triggerer", "api-server", "dag-processor")

_TRIES = 5
_LOOK_S = 2.0

DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"

_DAGS = Path(__file__).with_name("dags")
_ENVIRONMENT = {
    "AIRFLOW__CORE__PARALLELISM": "10",
    # By default a task whose worker is silent counts as dead after 300 s, which would make each such round so long.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT_S),
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    # And a dead scheduler's tasks are looked for only every 300 s.
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "RAYTPU_SIM_HEAL_S": str(HEAL_S),
}


@dataclass
class Stage:
    """
    :param database: its URL, as Airflow has it.
    :param version: what the served application is to answer now.
    :param revived: how often a component of Airflow ended by itself.
    """

    airflow: RealAirflow
    folder: Path
    shared: Shared
    database: str
    version: str = ""
    revived: int = 0
    tables: AirflowTables = field(init=False)
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held by whoever tells Airflow's owner something: it answers one after another."""

    begins: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever starts a run: SQLite, where it is the database, lets one write at a time."""

    def __post_init__(self) -> None:
        self.tables = AirflowTables(self.airflow.home.airflow, self.database)

    @property
    def clusters(self) -> Path:
        return self.airflow.home.simulated

    def diary(self, token: str) -> Path:
        return self.folder / token

    def begin(self, dag_id: str, token: str, tpu_slice: str, steps: int, nap_s: float) -> Run:
        """Start a run, with a folder of its own."""
        folder = self.diary(token)
        (folder / "in").mkdir(parents=True)
        (folder / "model.json").write_text(json.dumps({"folder": str(folder), "nap_s": nap_s}))
        _write_rows(folder / "in", steps * 16)
        conf = {
            "token": token,
            "folder": str(folder),
            "steps": steps,
            "nap_s": nap_s,
            "slice": tpu_slice,
            "cluster": self.shared.name,
            "model": (folder / "model.json").as_uri(),
            "input": (folder / "in").as_uri(),
            "output": (folder / "out").as_uri(),
        }
        with self.begins:
            return self._trigger(dag_id, token, conf)

    def _trigger(self, dag_id: str, token: str, conf: dict[str, Any]) -> Run:
        for left in reversed(range(_TRIES)):
            try:
                return trigger(self.airflow, dag_id, conf, run_id=token)
            except BackendUnreachable:
                # SQLite was busy with something else, for longer than Airflow waits for it.
                if not left:
                    raise
                time.sleep(2)
            except PlaceError:
                if self.tables.run_state(dag_id, token) is None:
                    raise
                return Run(self.airflow.api, dag_id, token)
        raise AssertionError

    def names(self, dag_id: str, token: str, task_id: str = "work") -> list[str]:
        """The remote names of a task's attempts, as its outbox has them."""
        found = self.outbox(dag_id, token, task_id).glob("*.request.json")
        return [path.name.removesuffix(".request.json") for path in found]

    def outbox(self, dag_id: str, token: str, task_id: str = "work") -> Path:
        return self.airflow.home.storage / dag_id / task_id / token / "outbox"

    def revive(self) -> None:
        """Start again what ended by itself, as a supervisor of services does."""
        with self.lock:
            for name in COMPONENTS:
                if not self.airflow.pids(name):
                    self.airflow.start(name)
                    self.revived += 1

    def settle(self) -> None:
        """Have Airflow whole again: each component once, and healthy."""
        self.revive()
        with self.lock:
            for name in COMPONENTS:
                while len(self.airflow.pids(name)) > 1:
                    kill(component(self.airflow, name))
        wait_for(lambda: healthy(self.airflow.api, self.airflow.owner), 180, every_s=1)
        self.shared.mend()
        self.serve_first()

    def serve_first(self) -> None:
        """Have a good version of the application before any is rolled out over it."""
        if self.version and ask(self.shared.endpoint):
            return
        token = f"v{time.time_ns() % 10**8}"
        run = self.begin("serve_shared_triggerer", token, SHARED, 10, 0.1)
        state = run.end(within_s=240)
        if state != "success":
            raise RuntimeError(f"the first version was not served: {run.last_words('work')}")
        self.version = token


@dataclass
class Shared:
    """The shared cluster. Made anew under the same name when its head was lost."""

    root: Path

    def __post_init__(self) -> None:
        self.request = cluster_request("chaos", SHARED, ttl_s=120)
        self._start()

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def record(self) -> Record:
        found = cluster.attach(self.root, self.name)
        assert found is not None
        return found.record

    @property
    def tables(self) -> RayTables:
        found = cluster.attach(self.root, self.name)
        assert found is not None
        return tables_of(found)

    @property
    def endpoint(self) -> str:
        return f"{self.record.endpoint}/echo"

    def mend(self) -> None:
        """Have it ready, with all its slices whole."""
        found = cluster.attach(self.root, self.name)
        if found is None or found.lost or found.record.phase is not Phase.READY:
            if found is not None:
                cluster.remove(found)
            self._start()
        wait_for(lambda: all(part.whole for part in self.record.slices), 120, every_s=0.5)

    def _start(self) -> None:
        for left in reversed(range(_TRIES)):
            try:
                start_ready(self.root, self.request, ALSO, Arrivals(heal_s=HEAL_S))
                break
            except AssertionError:
                # A busy machine: Ray gives a node 30 s to start.
                if not left:
                    raise
                if (found := cluster.attach(self.root, self.name)) is not None:
                    cluster.remove(found)


def tables_of(found: Cluster) -> RayTables:
    return RayTables(found.record.dashboard, found.token())


def processes_of(found: Cluster) -> list[ProcessId]:
    return list(members(found.record.uid, found.folder))


@contextlib.contextmanager
def reviving(found: Stage) -> Iterator[None]:
    """Look after Airflow's components meanwhile."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(_LOOK_S):
            found.revive()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """All of it; nothing is left afterwards, however it ends."""
    processes.adopt_orphans()
    os.environ["RAYTPU_SIM_HEAL_S"] = str(HEAL_S)
    with (
        short_folder() as folder,
        _environment(folder / ".demo") as environment,
        real_airflow(folder / ".demo", _DAGS, environment) as airflow,
    ):
        shared = Shared(airflow.home.simulated)
        try:
            with beating(shared.root, shared.request):
                found = Stage(airflow, folder, shared, environment[DATABASE])
                with reviving(found):
                    found.serve_first()
                    yield found
        finally:
            for each in cluster.living(airflow.home.simulated):
                cluster.remove(each)


@contextlib.contextmanager
def _environment(root: Path) -> Iterator[dict[str, str]]:
    # SQLite gives up after 5 s by default, and with it whichever component waits; but the triggerer waits in silence.
    sqlite = f"sqlite:///{root / 'airflow' / 'airflow.db'}?timeout=15"
    with better_database() as database:
        yield {**_ENVIRONMENT, DATABASE: sqlite, **database}


def path_of(uri: str) -> Path:
    return Path(urlparse(uri).path)


def _write_rows(folder: Path, rows: int) -> None:
    """*rows* rows with an id each, in some files of unequal size."""
    bounds = [rows * part * (part + 1) // (PARTS * (PARTS + 1)) for part in range(PARTS + 1)]
    for number, (first, last) in enumerate(itertools.pairwise(bounds)):
        ids = pa.array(range(first, last), pa.int64())
        pq.write_table(pa.table({"id": ids, "value": ids.cast(pa.float32())}), folder / f"{number}.parquet")
