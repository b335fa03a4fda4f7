from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated import processes
from airflow_raytpu.backends.simulated.processes import MARK, NODES, ProcessId
from tests.simulated_cluster import wait_for


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        process.kill()
        process.wait()


def sleeper(started: list[subprocess.Popen[bytes]], **settings: object) -> ProcessId:
    process = subprocess.Popen(["sleep", "1000"], **settings)  # type: ignore[call-overload]
    started.append(process)
    found = ProcessId.of(process.pid)
    assert found is not None
    return found


def test_a_process_is_known_until_it_ends(started: list[subprocess.Popen[bytes]]) -> None:
    process = sleeper(started)
    assert process.alive()
    assert process == ProcessId.of(process.pid)
    assert process.signal(signal.SIGKILL)
    wait_for(lambda: not process.alive())
    # It is a zombie now: nobody has waited for it.
    assert ProcessId.of(process.pid) is None
    assert not process.signal(signal.SIGKILL)
    started[0].wait()
    assert not process.signal(signal.SIGKILL)


def test_another_process_with_the_same_pid_is_left_alone(started: list[subprocess.Popen[bytes]]) -> None:
    process = sleeper(started)
    former = replace(process, began="boot:1")
    assert not former.alive()
    assert not former.signal(signal.SIGKILL)
    assert process.alive()


def test_members_carry_the_mark_or_write_into_the_nodes_folder(
    started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    (tmp_path / NODES).mkdir()
    (tmp_path / NODES / "log").touch()
    marked = sleeper(started, env={**os.environ, MARK: "uid-1"})
    sleeper(started, env={**os.environ, MARK: "uid-11"})
    with (tmp_path / NODES / "log").open("w") as log:
        writing = sleeper(started, stdout=log)
    with (tmp_path / NODES / "log").open() as log:
        sleeper(started, stdin=log)
    with (tmp_path / "supervisor.log").open("w") as log:
        sleeper(started, stdout=log)
    assert set(processes.members("uid-1", tmp_path)) == {marked, writing}


def test_writers_write_into_this_folder_and_no_other(started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    for name in ("0.1", "0.10"):
        (tmp_path / name).mkdir()
        with (tmp_path / name / "log").open("w") as log:
            sleeper(started, stdout=log)
    with (tmp_path / "0.1" / "log").open() as log:
        sleeper(started, stdin=log)
    assert [each.pid for each in processes.writers(tmp_path / "0.1")] == [started[0].pid]


def test_a_file_that_is_closed_meanwhile_hides_no_other(tmp_path: Path) -> None:
    for name in ("fd", "fdinfo"):
        (tmp_path / name).mkdir()
    for number in range(10):
        (tmp_path / "fd" / str(number)).touch()  # to read it as a link fails, as it does with one that is gone
    (tmp_path / "fd" / "10").symlink_to("/a folder/log")
    (tmp_path / "fdinfo" / "10").write_text("pos:\t0\nflags:\t0100001\n")
    assert processes._writes_into(str(tmp_path), "/a folder/")
    assert not processes._writes_into(str(tmp_path), "/another/")


def test_ending_ends_what_is_found_and_says_what_resists(started: list[subprocess.Popen[bytes]]) -> None:
    process = sleeper(started)
    assert processes.end(lambda: [process] if process.alive() else [], within_s=10.0) == []
    own = ProcessId.own()
    assert processes.end(lambda: [replace(own, began="boot:1")], within_s=0.0) == [replace(own, began="boot:1")]


def test_orphans_are_adopted_and_found() -> None:
    script = """
import os, subprocess, sys
from airflow_raytpu.backends.simulated import processes
processes.adopt_orphans()
subprocess.run(["sh", "-c", "setsid sleep 1000 & exec true"])
found = processes.family()
assert len(found) == 1, found
assert processes.end(processes.family, 10.0) == []
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
