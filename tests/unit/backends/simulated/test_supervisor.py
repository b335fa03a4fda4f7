"""The supervisor without any Ray: signals at any moment, and hosts that do not go."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from airflow_raytpu.backends.simulated.state import Record
from airflow_raytpu.backends.simulated.supervisor import Supervisor

RECORD = {
    "name": "tests-shared-0a1b2c3d",
    "uid": "u",
    "owner": "o",
    "identity": {},
    "slice": "v6e:2x2",
    "ttl_s": 60.0,
    "created_at": 0.0,
    "token_path": "t",
}

INTERRUPTED = """
import itertools, json, os, signal, sys
from pathlib import Path
from airflow_raytpu.backends.simulated.state import Record
from airflow_raytpu.backends.simulated.supervisor import Supervisor, _Stop

supervisor = Supervisor(Path(sys.argv[1]), Record(**json.loads(sys.argv[2])))
supervisor._listen()

def stops():
    try:
        supervisor._tick(0.002)
    except _Stop:
        return True
    return False

for at in itertools.count(1):
    steps = itertools.count(1)

    def trace(*_):
        if next(steps) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return trace

    sys.settrace(trace)
    stopped = stops()
    sys.settrace(None)
    if next(steps) <= at:
        break
    # What comes after the wait is heard at the next one.
    assert stopped or stops(), at
print(at)
"""


def test_a_signal_is_heard_at_whatever_moment_of_a_look_it_comes(tmp_path: Path) -> None:
    (tmp_path / "heartbeat").touch()
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), json.dumps(RECORD)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


class Hosts:
    """Those of slice 0 and slice 1, which stay."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def slices(self) -> set[int]:
        return {0, 1}

    def end_slice(self, index: int, number: int = signal.SIGTERM) -> None:
        self.told.append((index, number))


def test_hosts_that_do_not_hear_that_their_slice_is_lost_are_killed_and_hold_nothing_up(tmp_path: Path) -> None:
    supervisor, hosts = Supervisor(tmp_path, Record(**RECORD)), Hosts()
    supervisor._fleet = hosts
    now = time.monotonic()
    supervisor._awaited = {0: now + 10, 2: now - 1}
    assert supervisor._now_due() == [2]
    assert hosts.told == [(0, signal.SIGTERM)], "slice 1 is not lost"
    supervisor._awaited = {0: now - 3600}
    assert supervisor._now_due() == []
    assert hosts.told[1:] == [(0, signal.SIGKILL)]
