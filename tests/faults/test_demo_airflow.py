"""The demo with a real Airflow, and a DAG that stands in for the real one: the same id, no Ray."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_raytpu.demo import processes
from airflow_raytpu.demo.home import DemoHome

pytestmark = pytest.mark.airflow

LIMIT_S = 240

DAG = """
import json, os, time
from pathlib import Path

from airflow.sdk import DAG, task
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import Progress

with DAG("digits", schedule=None):

    @task
    def train(ti=None):
        identity = Identity(deployment="demo", dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id)
        outbox = Path(os.environ["AIRFLOW_HOME"]).parent / "storage" / identity.storage_path() / "outbox"
        outbox.mkdir(parents=True)
        word = Progress(request="r", phase="training", at=1.0, done=40, total=100, unit="step", metrics={"loss": 0.5})
        (outbox / "r.progress.json").write_text(json.dumps(word.to_dict()))
        time.sleep(SECONDS)
        return {"step": 100, "devices": 16, "processes": 4}

    @task
    def evaluate(trained):
        if FAIL:
            raise ValueError("accuracy 0.5 is below 0.95\\nraise steps")
        return {"accuracy": 0.97, "rows": 360}

    evaluate(train())
"""


@dataclass
class Place:
    home: DemoHome

    def start(self, seconds: float = 3, *, fail: bool = False) -> subprocess.Popen[str]:
        """A demo with no terminal."""
        self.home.dags.mkdir(exist_ok=True)
        text = DAG.replace("SECONDS", str(seconds)).replace("FAIL", str(fail))
        (self.home.dags / "digits.py").write_text(text)
        command = [sys.executable, "-m", "airflow_raytpu.cli", "demo", "--port", str(self.home.port)]
        return subprocess.Popen(
            [*command, "--home", str(self.home.root), "--dags", str(self.home.dags)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def left(self) -> list[int]:
        return [process.pid for process in processes.marked(self.home.root)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = DemoHome(root=tmp_path / "a b" / ".demo", dags=tmp_path / "dags", port=port)
    yield Place(home)
    processes.end(lambda: processes.marked(home.root), hurry=lambda: True)
    home.remove()


def _read_until(demo: subprocess.Popen[str], text: str) -> str:
    read = ""
    deadline = time.monotonic() + LIMIT_S
    assert demo.stdout
    for line in demo.stdout:
        read += line
        if text in line or time.monotonic() > deadline:
            break
    assert text in read, read
    return read


def test_a_run_is_told_in_lines_and_leaves_nothing(place: Place):
    demo = place.start()
    said, _ = demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 0, said
    assert f"Airflow's UI: http://localhost:{place.home.port}  user admin  password " in said
    assert "train      training  step 40/100  loss 0.5" in said
    assert "evaluate   success" in said
    assert "test accuracy  0.9700" in said
    assert said.endswith("Stopped; nothing is left running.\n")
    assert place.left() == []
    assert not place.home.simulated.exists()


@pytest.mark.long
def test_after_a_kill_9_the_next_demo_takes_the_same_port_and_tells_why_a_task_failed(place: Place):
    first = place.start(seconds=600)
    _read_until(first, "step 40/100")
    first.kill()
    first.communicate()
    second = place.start(fail=True)
    said, _ = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 1, said
    assert "The run failed" in said
    assert "evaluate failed. The end of its log:" in said
    assert "ValueError: accuracy 0.5 is below 0.95\n  raise steps" in said
    assert place.left() == []


def test_a_component_that_ends_ends_the_demo_and_is_told(place: Place):
    demo = place.start(seconds=600)
    _read_until(demo, "step 40/100")
    log = (place.home.logs / "scheduler.log").read_text()
    assert "Starting the scheduler" in log
    (scheduler,) = [pid for pid in place.left() if _is_scheduler(pid, place)]
    os.kill(scheduler, signal.SIGKILL)
    said, _ = demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 1, said
    assert "Airflow's scheduler ended (status -9). Its last lines:" in said
    assert "[RT200]" in said
    assert place.left() == []


def test_a_second_demo_of_the_same_clone_is_refused_and_clean_ends_the_first(place: Place):
    demo = place.start(seconds=600)
    _read_until(demo, "Starting Airflow")
    refused, _ = place.start().communicate(timeout=LIMIT_S)
    assert f"A demo of this clone runs already (pid {demo.pid})" in refused
    clean = [sys.executable, "-m", "airflow_raytpu.cli", "demo", "--clean", "--home", str(place.home.root)]
    done = subprocess.run(clean, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout == f"Ending the demo that runs (pid {demo.pid}).\nNothing of the demo is left.\n"
    demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 128 + signal.SIGTERM
    assert place.left() == []
    assert not place.home.root.exists()


def _is_scheduler(pid: int, place: Place) -> bool:
    """Of the processes that write the scheduler's log, the one whose children are its workers."""
    log = place.home.logs / "scheduler.log"
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return _writes(pid, log) and not _writes(parent, log)


def _writes(pid: int, log: Path) -> bool:
    return Path(f"/proc/{pid}/fd/2").resolve() == log
