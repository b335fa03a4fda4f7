"""Work that a test holds still: a program that tells when it begins, waits, and saves when it is stopped.

It runs on a real simulated cluster, submitted by a real Airflow, so whether it is at work is asked of the kernel, and
which jobs there are of Ray.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_raytpu.backends.rayapi import RayApi
from airflow_raytpu.backends.rayslices import OWNER, Listing
from airflow_raytpu.backends.simulated import state
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.model.identity import Identity
from tests.simulated_cluster import wait_for

PROGRAM = "held.py"
"""What tasks run: ``RayTpuJobOperator(run="held.py", op_args=[MARKS, NAME, HOW])`` with one of

- ``done``: it ends at once;
- ``hold``: the first of its name waits for the file NAME.go, the others end at once;
- ``fail``: it waits for that file, and ends with status 3;
- ``finish``: the first of its name waits for it, too, and then returns, and its process stays.
"""

_SOURCE = """
import atexit
import os
import signal
import sys
import time
from pathlib import Path

marks, name, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
me = f"{os.getpid()}-{time.time_ns()}"


def save(*_):
    time.sleep(1)
    (marks / f"{name}.saved-{me}").touch()
    os._exit(0)


def stay():
    (marks / f"{name}.finishing-{me}").touch()
    time.sleep(600)


signal.signal(signal.SIGTERM, save)
first = not list(marks.glob(f"{name}.began-*"))
(marks / f"{name}.began-{me}").touch()
if how == "fail" or (how in ("hold", "finish") and first):
    while not (marks / f"{name}.go").exists():
        time.sleep(0.1)
if how == "finish" and first:
    atexit.register(stay)
if how == "fail":
    sys.exit(3)
(marks / f"{name}.done-{me}").touch()
"""

Jobs = Mapping[tuple[str, str, str], Mapping[int, bool]]
"""By DAG, run and task the attempts that are there as jobs of Ray, and whether each has ended."""

_ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}


@dataclass(frozen=True)
class Marks:
    """What the programs left in *folder*."""

    folder: Path

    def put_program(self, dags: Path) -> None:
        """Write the program beside the DAG files."""
        (dags / PROGRAM).write_text(_SOURCE)

    def count(self, name: str, what: str) -> int:
        """How often a program of that name ``began``, ``saved``, was ``finishing`` or ``done``."""
        return len(list(self.folder.glob(f"{name}.{what}-*")))

    def at_work(self, name: str) -> bool:
        """Whether any process of it lives."""
        pids = [int(path.name.split("-")[-2]) for path in self.folder.glob(f"{name}.began-*")]
        return any(_runs(pid) for pid in pids)

    def release(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()


def connection(root: Path, conn_id: str = "raytpu_default") -> dict[str, str]:
    """Airflow's environment with a connection to the simulated slices in *root*."""
    return {f"AIRFLOW_CONN_{conn_id.upper()}": json.dumps({"conn_type": "raytpu", "extra": {"root": str(root)}})}


def show_through(found: Cluster, port: int, root: Path) -> None:
    """Have *found* stand in *root*, too, as a cluster whose dashboard is at *port* of this machine."""
    folder = root / found.folder.name
    folder.mkdir(mode=0o700, parents=True)
    root.chmod(0o700)
    for each in found.folder.iterdir():
        (folder / each.name).symlink_to(each)
    (folder / "state.json").unlink()
    state.write(folder, replace(found.record, dashboard=f"http://127.0.0.1:{port}"))


def listing(found: Cluster) -> Listing:
    """What Ray says of a ready cluster now."""

    async def ask() -> Listing:
        api = RayApi(found.record.dashboard, found.token())
        try:
            return await api.listing()
        finally:
            await api.close()

    return asyncio.run(ask())


def jobs(seen: Listing) -> Jobs:
    found: dict[tuple[str, str, str], dict[int, bool]] = {}
    for each in seen.jobs:
        owner = Identity.from_owner((each.get("metadata") or {}).get(OWNER, ""))
        if owner is not None:
            attempts = found.setdefault((owner.dag_id, owner.run_id, owner.task_id), {})
            # One submission is one row; a second one of the same attempt would be a second row.
            assert owner.attempt not in attempts, each
            attempts[owner.attempt] = each["status"] in _ENDED
    return found


def held_groups(seen: Listing) -> list[Mapping[str, object]]:
    """Placement groups that hold something, or want to."""
    return [group for group in seen.groups if group["state"] != "REMOVED"]


def until_each(
    cases: Mapping[Any, Any], look: Callable[[], Any], condition: Callable[[Any, Any], Any], within_s: float
) -> None:
    """Look again and again until *condition* was true of each of *cases*, once, with what was seen."""
    left = dict(cases)

    def none_left() -> bool:
        seen = look()
        for key in [key for key, case in left.items() if condition(case, seen)]:
            del left[key]
        return not left

    try:
        wait_for(none_left, within_s, every_s=0.3)
    except TimeoutError:
        pytest.fail(f"not within {within_s:.0f} s: {list(left)}")


def _runs(pid: int) -> bool:
    """Whether *pid* is the program still, and not another process that has its number by now."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return False
    return "runtime.program" in words and ProcessId.of(pid) is not None
