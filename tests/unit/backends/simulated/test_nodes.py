from __future__ import annotations

import subprocess
import sys

ASK = """
import threading, time
from airflow_raytpu.backends.simulated import nodes
print(nodes.told_by_fork(lambda: {"threads": threading.active_count()}))
print(nodes.told_by_fork(lambda: 1 / 0))
print(nodes.told_by_fork(lambda: time.sleep(1000), within_s=0.1))
"""


def test_what_is_asked_in_a_forked_process_is_told_and_what_fails_or_hangs_tells_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["{'threads': 1}", "None", "None"]
    assert "ZeroDivisionError" in done.stderr
