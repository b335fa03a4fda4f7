"""Work that writes down which slice it held and when: DAGs that want two slices in every way, on one cluster.

The cluster is the one that the example DAG ``05_backfill.py`` shares among its runs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_raytpu.backends.rayslices import OWNER
from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.backends.simulated.state import Phase
from airflow_raytpu.model.identity import CLUSTER_NAME_LIMIT, Identity
from airflow_raytpu.model.request import RayRequest
from tests import held_work
from tests.real_airflow import RealAirflow, Run
from tests.simulated_cluster import FIXED, beating, cluster_request, processes_of, wait_for, wait_until_settled

SLICES = 2
POOL = "tpu-slices"
MAPPED, BAD = 9, 4
"""How many mapped tasks there are, and which of them fails."""

_EVERYBODY = Identity(deployment="demo", dag_id="", task_id="backfill", run_id="")
"""Whose the example's cluster is: nobody's run."""

_STARTS = 3
"""A Ray node has 30 s to start, and a machine that is busy with other tests may not give it those."""

_CLUSTER = _EVERYBODY.remote_name(CLUSTER_NAME_LIMIT)

_DAGS = """
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_raytpu import CheckpointPolicy, Deadlines
from airflow_raytpu.operators import JaxTrainerOperator, RayTpuJobOperator

ONE = {{"slice": "v6e:2x4@4t", "retries": 2, "deadlines": Deadlines(slice_wait=timedelta(minutes=10))}}


def daily(dag_id, last, catchup=False):
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, last, tzinfo=UTC)
    return DAG(dag_id, schedule="@daily", start_date=start, end_date=end, catchup=catchup)


def work(marks, key, gate=None, bad=False):
    import json
    import os
    import time

    from airflow_raytpu.runtime import here

    (held,) = here.reserved().names

    def tell(what):
        with open(marks, "a") as file:
            file.write(json.dumps([key, what, held, time.monotonic(), os.getpid()]) + "\\n")

    tell("begin")
    while gate and not os.path.exists(gate):
        time.sleep(0.1)
    time.sleep(0.5)
    tell("end")
    if bad:
        raise ValueError(f"{{key}} is bad")
    return {{"key": key, "slice": held}}


def loop(config):
    import numpy as np

    from airflow_raytpu.runtime import checkpoints

    state, step = checkpoints.restore_or_init(lambda: {{"day": np.float32(float(config["day"]))}})
    while step < 2:
        step += 1
        checkpoints.step(step, state, {{"day": float(state["day"])}})


def job(gate=None, **more):
    told = {{"marks": {marks!r}, "key": "{{{{ dag.dag_id }}}}/{{{{ run_id }}}}", "gate": gate}}
    return RayTpuJobOperator(task_id="work", run=work, op_kwargs=told, **ONE, **more)


with daily("pooled", 30):
    job(cluster={cluster!r}, pool={pool!r})

with daily("trained", 2):
    JaxTrainerOperator(
        task_id="train",
        cluster={cluster!r},
        train_loop=loop,
        train_loop_config={{"day": "{{{{ logical_date.day }}}}"}},
        checkpoint=CheckpointPolicy(every_steps=1),
        pool={pool!r},
        **ONE,
    )

with daily("free", 30):
    job(cluster={cluster!r})

with daily("twice", 1, catchup=True):
    job(cluster={cluster!r})

with daily("stopped", 10):
    job(cluster={cluster!r}, gate={gate!r})

with DAG("mapped", schedule=None):
    RayTpuJobOperator.partial(task_id="work", run=work, cluster={cluster!r}, **{{**ONE, "retries": 0}}).expand(
        op_kwargs=[{{"marks": {marks!r}, "key": f"mapped/{{n}}", "bad": n == {bad}}} for n in range({mapped})]
    )
"""


@dataclass(frozen=True)
class Stint:
    """One program at work on a slice; ``end`` is ``None`` where it never got there."""

    key: str
    slice: str
    begin: float
    end: float | None


@dataclass(frozen=True)
class Slices:
    """An Airflow whose DAGs want two slices, in a folder where their programs write.

    :param folder: holds ``marks``, and ``gate`` once programs that wait for it may end.
    """

    airflow: RealAirflow
    folder: Path

    @staticmethod
    def put_dags(folder: Path, dags: Path) -> None:
        """Write the DAGs whose programs write in *folder*."""
        where = {"marks": str(folder / "marks"), "gate": str(folder / "gate"), "cluster": _CLUSTER}
        (dags / "slice_turns.py").write_text(_DAGS.format(**where, pool=POOL, bad=BAD, mapped=MAPPED))

    @property
    def found(self) -> Cluster:
        there = cluster.attach(self.airflow.home.simulated, _CLUSTER)
        assert there
        return there

    def stints(self, dag_id: str) -> list[Stint]:
        """Every time that a program of *dag_id* was at work, in the order of their beginnings."""
        marks = self.folder / "marks"
        rows = [json.loads(line) for line in marks.read_text().splitlines()] if marks.exists() else []
        ends = {(key, pid): at for key, what, _, at, pid in rows if what == "end"}
        begun = [Stint(key, name, at, ends.get((key, pid))) for key, what, name, at, pid in rows if what == "begin"]
        return [each for each in begun if each.key.startswith(f"{dag_id}/")]

    def jobs(self, dag_id: str) -> list[Identity]:
        """Every job that the cluster was ever given for *dag_id*."""
        rows = held_work.listing(self.found).jobs
        owners = [Identity.from_owner((row.get("metadata") or {}).get(OWNER, "")) for row in rows]
        return [each for each in owners if each is not None and each.dag_id == dag_id]

    def rest(self) -> bool:
        """Whether no process of a job is left on the cluster, and nothing holds a slice or wants one."""
        found = self.found
        return not any(map(_is_of_a_job, processes_of(found))) and not held_work.held_groups(held_work.listing(found))

    def run_states(self, dag_id: str) -> Counter[str]:
        rows = self.airflow.api._call("GET", f"/api/v2/dags/{dag_id}/dagRuns?limit=100")["dag_runs"]
        return Counter(row["state"] for row in rows)

    def rows(self, dag_id: str) -> list[dict[str, Any]]:
        """What Airflow says of every task of *dag_id*, in all its runs."""
        return self.airflow.api.task_instances(dag_id, "~")

    def results(self, dag_id: str) -> Counter[Path]:
        """The folders in storage that hold results of *dag_id*, and how many each of them has."""
        return Counter(path.parent for path in self.airflow.home.storage.glob(f"{dag_id}/*/*/outbox/*.result.json"))

    def make_pool(self) -> None:
        pool = {"name": POOL, "slots": SLICES, "include_deferred": True}
        self.airflow.api._call("POST", "/api/v2/pools", pool)

    def pool_in_use(self) -> int:
        return self.airflow.api._call("GET", f"/api/v2/pools/{POOL}")["occupied_slots"]

    def succeed(self, dag_id: str, count: int, within_s: float) -> None:
        """Wait until *count* runs have ended well, and see that no task of theirs was tried twice."""

        def ended() -> bool:
            states = self.run_states(dag_id)
            assert "failed" not in states, self._complaints(dag_id)
            return states == {"success": count}

        wait_for(ended, within_s, every_s=1.0)
        assert {row["try_number"] for row in self.rows(dag_id)} == {1}

    def _complaints(self, dag_id: str) -> list[str]:
        failed = [row for row in self.rows(dag_id) if row["state"] == "failed"]
        return [Run(self.airflow.api, dag_id, row["dag_run_id"]).last_words(row["task_id"]) for row in failed]


@contextlib.contextmanager
def examples_cluster(root: Path) -> Iterator[None]:
    """The cluster as the example's first run would bring it up in *root*; nothing of it is left afterwards."""
    request = replace(cluster_request("", "v6e:2x4*2@ct6e-standard-4t"), identity=_EVERYBODY, shared=True)
    found = _start(root, request)
    try:
        with beating(root, request):
            yield
    finally:
        cluster.remove(found)
        assert processes_of(found) == []


def _start(root: Path, request: RayRequest) -> Cluster:
    for _ in range(_STARTS):
        cluster.start(root, request, arrivals=FIXED)
        found = wait_until_settled(root, request)
        if found.record.phase is Phase.READY:
            return found
        cluster.remove(found)
    raise AssertionError(found.record.detail)


def most_at_once(stints: Sequence[Stint]) -> int:
    """How many programs were at work at one time at most.

    :raises AssertionError: a slice was held by two, or a program did not get to its end.
    """
    turns: dict[str, list[Stint]] = defaultdict(list)
    for each in sorted(stints, key=lambda each: each.begin):
        assert each.end, each
        turns[each.slice].append(each)
    for own in turns.values():
        assert all(earlier.end < later.begin for earlier, later in itertools.pairwise(own)), own
    return len(turns)


def overtaken(keys: Sequence[str]) -> int:
    """How many later ones began before the one that was overtaken most."""
    return max(sum(earlier > key for earlier in keys[:place]) for place, key in enumerate(keys))


def _is_of_a_job(process: ProcessId) -> bool:
    """Whether it is a job's driver or its program."""
    try:
        return b"airflow_raytpu.runtime" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return False
