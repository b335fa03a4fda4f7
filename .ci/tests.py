"""The tests, as pytest is asked for them: ``.ci/tests.py [ARGUMENT...]``. Called by make, from the top of the clone.

Unit tests share nothing, so they run beside one another. All others share clusters and measure how long things take:
they run one after another, once the unit tests are over, and a last line adds both parts up. What is neither the whole
suite nor the whole of the unit tests is handed to pytest as it is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

PYTEST = (sys.executable, "-m", "pytest")

# Each worker takes some seconds and 700 MB for Airflow and Ray alone, so that many of them gain nothing.
BESIDE = ("-n", "logical", "--maxprocesses", "4", "--dist", "worksteal")

OUTCOMES = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warning", "error")
_OVER = (0, 1, 5)
"""Statuses of a part that came to its end: all is well, some tests failed, or there were none."""


def main(arguments: list[str]) -> int:
    """The status of the first part that did not end well."""
    if arguments == ["tests/unit"]:
        return part(*BESIDE, *arguments)[0]
    if arguments != ["tests"]:
        return part(*arguments)[0]
    began = time.monotonic()
    status, told = part(*BESIDE, "tests/unit")
    if status == 2 or status > 128:
        print("The unit tests were broken off: no other test was begun.")
    else:
        others, told_by_others = part("tests", "--ignore=tests/unit")
        status, told = status or others, told + told_by_others
    print("Both parts together:")
    for line in summary(told, round(time.monotonic() - began)):
        print(line)
    return status


def part(*arguments: str) -> tuple[int, list[str]]:
    """Run pytest; its status, and what ``tests/conftest.py`` tells about it, line by line."""
    with tempfile.TemporaryDirectory() as folder:
        telling = Path(folder) / "told"
        process = subprocess.Popen([*PYTEST, *arguments], env={**os.environ, "TESTS_TOLD": str(telling)})
        # An interrupt reaches pytest too. What it has started must be ended before this ends.
        handlers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: lambda *_: process.terminate()}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            found = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        told = telling.read_text().splitlines() if telling.exists() else []
    status = found if found >= 0 else 128 - found
    if status not in _OVER and not any(line.startswith("ERROR ") for line in told):
        told.append("1 error")
    return status, told


def summary(told: list[str], seconds: int) -> list[str]:
    """The tests that failed, and a line such as pytest's own with the sum of all counts."""
    named = [line for line in told if line.startswith(("FAILED ", "ERROR "))]
    counts: Counter[str] = Counter()
    for line in told:
        number, _, outcome = line.partition(" ")
        if number.isdigit():
            counts[outcome.removesuffix("s")] += int(number)
    parts = [
        f"{counts[outcome]} {outcome}{'s' if outcome in {'warning', 'error'} and counts[outcome] > 1 else ''}"
        for outcome in OUTCOMES
        if counts[outcome]
    ]
    line = f" {', '.join(parts) or 'no tests ran'} in {seconds}.00s ({timedelta(seconds=seconds)}) "
    return [*named, line.center(100, "=")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
