from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulated_cluster import SimulatedCluster, running_cluster, short_folder


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
