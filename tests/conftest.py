from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.simulated_cluster import SimulatedCluster, running_cluster, short_folder

# Airflow writes to its home when it is imported, which comes after this. A worker's lies in that of whoever started it,
# who removes it though the worker be killed.
_AROUND = os.environ["AIRFLOW_HOME"] if "PYTEST_XDIST_WORKER" in os.environ else None
_HOME = tempfile.mkdtemp(prefix="raytpu-tests-", dir=_AROUND)
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

# Speed is measured in bench/; a busy machine must not fail a property.
settings.register_profile("ours", deadline=None)
settings.load_profile("ours")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell ``.ci/tests.py``, which runs the suite in parts and adds them up, what became of this one."""
    told = os.environ.get("TESTS_TOLD")
    if told:
        lines = [text for text, _ in terminalreporter.build_summary_stats_line()[0]]
        for outcome, word in (("failed", "FAILED"), ("error", "ERROR")):
            lines += [f"{word} {report.nodeid}" for report in terminalreporter.stats.get(outcome, ())]
        Path(told).write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="session")
def simulated_cluster() -> Iterator[SimulatedCluster]:
    """A ready ``v6e:4x4`` for all tests of the session. Leave it as you found it: stop what you start."""
    with running_cluster("v6e:4x4") as found:
        yield found


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary folder with a path short enough to be a root of simulated clusters."""
    with short_folder() as folder:
        yield folder
