"""Whatever happens to a demo, none of its processes stays. Real processes, no Airflow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated.processes import wait_until
from airflow_raytpu.demo import guardian, processes
from airflow_raytpu.demo.home import MARK

LIMIT_S = processes.GRACE_S + 10

# Starts a process, stubborn if the third argument says so, and one that slips away from its parent into a session of
# its own; says so with a file, then ends after as many seconds as the second argument says.
COMMAND = """
import subprocess, sys, time
from pathlib import Path
child = "import signal, time; signal.signal(signal.SIGTERM, signal.%s); print(flush=True); time.sleep(600)"
child %= "SIG_IGN" if sys.argv[3] == "stubborn" else "SIG_DFL"
subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE).stdout.readline()
sleep = "[sys.executable, '-c', 'import time; time.sleep(600)']"
away = f"import subprocess, sys; subprocess.Popen({sleep}, start_new_session=True)"
subprocess.run([sys.executable, "-c", away])
Path(sys.argv[1]).touch()
time.sleep(float(sys.argv[2]))
sys.exit(7)
"""

# A demo that starts a guardian and waits, as airflow_raytpu.demo.running does.
OWNER = """
import subprocess, sys, time
subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "simulated").mkdir()
    yield tmp_path
    processes.end(lambda: processes.marked(tmp_path), hurry=lambda: True)


def _guarded(root: Path, temper: str = "meek", lifetime_s: float = 600) -> list[str]:
    command = [sys.executable, "-c", COMMAND, str(root / "ready"), str(lifetime_s), temper]
    return [sys.executable, "-m", guardian.__name__, str(root / "simulated"), *command]


def _start(command: list[str], root: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, MARK: str(root)})


def _wait_ready(root: Path) -> None:
    assert wait_until((root / "ready").exists, LIMIT_S)


def _all_gone(root: Path) -> bool:
    return wait_until(lambda: not processes.marked(root), LIMIT_S)


def test_kill_9_of_the_demo_leaves_nothing(root: Path):
    owner = _start([sys.executable, "-c", OWNER, *_guarded(root, "stubborn")], root)
    _wait_ready(root)
    assert len(processes.marked(root)) == 5
    owner.kill()
    owner.wait()
    assert _all_gone(root)
    assert not (root / "simulated").exists()


def test_told_to_stop_it_asks_first_and_then_kills(root: Path):
    guard = _start(_guarded(root, "stubborn"), root)
    _wait_ready(root)
    guard.communicate(guardian.STOP, timeout=LIMIT_S)
    assert guard.returncode == 0
    assert processes.marked(root) == []


def test_hurried_it_kills_at_once(root: Path):
    guard = _start(_guarded(root, "stubborn"), root)
    _wait_ready(root)
    began = time.monotonic()
    guard.communicate(guardian.STOP + guardian.NOW, timeout=LIMIT_S)
    assert time.monotonic() - began < processes.GRACE_S
    assert processes.marked(root) == []


def test_hurried_later_it_stops_waiting(root: Path):
    guard = _start(_guarded(root, "stubborn"), root)
    _wait_ready(root)
    assert guard.stdin
    began = time.monotonic()
    for word in (guardian.STOP, guardian.NOW):
        guard.stdin.write(word)
        guard.stdin.flush()
    guard.wait(LIMIT_S)
    assert time.monotonic() - began < processes.GRACE_S
    guard.stdin.close()


def test_signals_of_a_terminal_do_not_touch_it_and_sigterm_ends_it(root: Path):
    guard = _start(_guarded(root), root)
    _wait_ready(root)
    for number in (signal.SIGINT, signal.SIGHUP):
        guard.send_signal(number)
    assert not wait_until(lambda: len(processes.marked(root)) < 4, 0.5)
    guard.terminate()
    assert guard.wait(LIMIT_S) == 0
    assert processes.marked(root) == []
    guard.communicate()


def test_when_the_command_ends_so_does_the_rest(root: Path):
    guard = _start(_guarded(root, lifetime_s=0.3), root)
    assert guard.wait(LIMIT_S) == 7
    assert processes.marked(root) == []
    guard.communicate()


def test_what_a_killed_guardian_leaves_is_found_and_ended(root: Path):
    guard = _start(_guarded(root, "stubborn"), root)
    _wait_ready(root)
    guard.kill()
    guard.communicate()
    assert len(processes.marked(root)) == 3
    processes.end(lambda: processes.marked(root))
    assert processes.marked(root) == []


def test_neither_this_process_nor_those_above_it_are_ever_found(root: Path):
    code = (
        "import sys; from pathlib import Path; from airflow_raytpu.demo import processes;"
        "print(len(processes.marked(Path(sys.argv[1]))))"
    )
    # Its parent carries the mark as well.
    inner = [sys.executable, "-c", code, str(root)]
    outer = [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)", *inner]
    done = subprocess.run(outer, env={**os.environ, MARK: str(root)}, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_a_renamed_process_keeps_its_mark(root: Path):
    code = "import setproctitle, time; setproctitle.setproctitle('airflow worker -- LocalExecutor'); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, MARK: str(root), "SPT_NOENV": "1"})
    assert wait_until(lambda: b"airflow worker" in Path(f"/proc/{process.pid}/cmdline").read_bytes(), LIMIT_S)
    assert [found.pid for found in processes.marked(root)] == [process.pid]
    process.kill()
    process.wait()


def test_a_child_ends_with_its_parent(root: Path):
    child = (
        "import os, sys, time; from pathlib import Path; from airflow_raytpu.demo import processes;"
        "processes.end_with_parent(os.getppid()); Path(sys.argv[1]).touch(); time.sleep(600)"
    )
    owner = _start([sys.executable, "-c", OWNER, sys.executable, "-c", child, str(root / "ready")], root)
    _wait_ready(root)
    owner.kill()
    owner.wait()
    assert _all_gone(root)
