from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.simulated_cluster import SimulatedCluster, running_cluster, short_folder

# Speed is measured in bench/; a busy machine must not fail a property.
settings.register_profile("ours", deadline=None)
settings.load_profile("ours")


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
