"""Runs of :mod:`tests.faults.checkpoint_loops` on a simulated cluster, and what they leave."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_raytpu.model.datasets import Dataset
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import Observation
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.runtime import data
from airflow_raytpu.runtime.feed import Feed
from airflow_raytpu.runtime.sources import scan
from tests.faults import checkpoint_loops
from tests.faults.checkpoint_loops import SHUFFLE
from tests.simulated_cluster import SimulatedCluster, job_request, processes_of, stage_files

EVERY, STEPS = 5, 32
SMALL, LARGE, TWO, SINGLE = "v6e:2x4@4t", "v6e:4x4", "v6e:2x4*2@4t", "v6e:2x2"


_RAYS_OWN = {".validate_storage_marker", "checkpoint_manager_snapshot.json"}


@dataclass(frozen=True)
class Try:
    """One try of a run, as its rank 0 wrote it down.

    :param losses: by step.
    """

    began: int
    environment: str
    losses: dict[int, float]

    @property
    def reached(self) -> int:
        return max(self.losses, default=self.began)


class Gangs:
    def __init__(self, cluster: SimulatedCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        text = Path(checkpoint_loops.__file__).read_text()
        self.code = stage_files({"checkpoint_loops.py": text}, folder / "code")

    def request(
        self,
        task_id: str,
        shape: str = SMALL,
        *,
        attempt: int = 1,
        run_id: str = "run",
        policy: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        loop: str = "train",
        datasets: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> RayRequest:
        identity = Identity(deployment="tests", dag_id="tests", task_id=task_id, run_id=run_id, attempt=attempt)
        storage = self.folder / "storage" / identity.storage_path()
        own = {
            "steps": STEPS,
            "trace": str(self.folder / f"{task_id}-{run_id}.trace"),
            "root": str(storage / "checkpoints"),
            "request": identity.remote_name(),
        }
        return job_request(
            task_id,
            storage,
            self.code,
            on=self.cluster.request,
            slice=shape,
            identity=identity,
            arguments={
                "train_loop": f"checkpoint_loops:{loop}",
                "train_loop_config": {**own, **(config or {})},
                "datasets": datasets or {},
                "checkpoint": {"every_steps": EVERY, "keep": 2, **(policy or {})},
                "failures": 0,
                "evictions": 0,
                "resume": "auto",
                **arguments,
            },
        )

    def run(self, request: RayRequest, within_s: float = 500.0) -> Observation:
        return self.cluster.run(request, within_s)

    def outcome(self, request: RayRequest, within_s: float = 500.0) -> Outcome:
        seen = self.run(request, within_s)
        assert seen.outcome is not None, self.cluster.log(request)
        return seen.outcome

    def result(self, request: RayRequest, within_s: float = 500.0) -> Any:
        outcome = self.outcome(request, within_s)
        assert outcome.succeeded, self.cluster.log(request)
        return outcome.value

    def write_rows(self, rows: int) -> str:
        """A data set of so many rows, in small row groups; its address."""
        folder = self.folder / f"{rows} rows"
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": range(rows)}), folder / "a.parquet", row_group_size=9)
        return folder.as_uri()


def assert_rows(request: RayRequest, last: int) -> None:
    """Every host had its part of each batch up to *last*, as a run has that nothing interrupts, on one host."""
    config = request.arguments["train_loop_config"]
    with data.opened(Feed({"train": scan(Dataset(request.arguments["datasets"]["train"]))})):
        batches = data.batches("train", global_batch_size=config["batch"], stop=last, shuffle_seed=SHUFFLE)
        expected = [batch["id"].tolist() for batch in batches]
    trace = Path(config["trace"])
    lines = [line for diary in trace.parent.glob(f"{trace.name}.rows-*") for line in diary.read_text().splitlines()]
    seen: list[set[int]] = [set() for _ in expected]
    for number, first, ids in map(json.loads, lines):
        assert ids == expected[number][first : first + len(ids)], number
        seen[number] |= set(ids)
    assert seen == [set(batch) for batch in expected]


def fault(what: str, rank: int, step: int, when: Any = 0.0) -> dict[str, Any]:
    return {"what": what, "rank": rank, "step": step, "when": when}


def tries(request: RayRequest) -> list[Try]:
    found: list[Try] = []
    for line in Path(request.arguments["train_loop_config"]["trace"]).read_text().splitlines():
        word, step, rest = line.split(" ", 2)
        if word == "from":
            found.append(Try(int(step), rest, {}))
        else:
            found[-1].losses[int(step)] = float(rest)
    return found


def left(request: RayRequest) -> list[str]:
    """What lies in the folder of the checkpoints, but for Ray Train's own files."""
    root = Path(request.arguments["train_loop_config"]["root"])
    return sorted(path.name for path in root.iterdir() if path.name not in _RAYS_OWN)


def record(request: RayRequest, step: int) -> Any:
    root = Path(request.arguments["train_loop_config"]["root"])
    return json.loads((root / str(step) / "raytpu-commit.json").read_text())


def workers(cluster: SimulatedCluster) -> list[str]:
    found = []
    for process in processes_of(cluster.found):
        try:
            found.append(" ".join(psutil.Process(process.pid).cmdline()))
        except psutil.NoSuchProcess:
            continue
    return [words for words in found if "RayTrainWorker" in words]
