from __future__ import annotations

import subprocess
import sys

ASK = """
import threading
from airflow_raytpu.backends.simulated import nodes
print(nodes.told_by_fork(lambda: {"threads": threading.active_count()}))
print(nodes.told_by_fork(lambda: 1 / 0))
"""


def test_what_is_asked_in_a_forked_process_is_told_and_a_failure_tells_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["{'threads': 1}", "None"]
    assert "ZeroDivisionError" in done.stderr
