"""Training on two slices loses one, goes on with the other, and has two again: one request, one driver, one curve."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from airflow_raytpu.backends.simulated.state import Arrivals
from airflow_raytpu.storage.series import series
from tests.faults.checkpoint_gangs import EVERY, SMALL, STEPS, TWO, Gangs, fault, tries
from tests.faults.test_checkpoints import STALE, assert_losses, uninterrupted
from tests.simulated_cluster import running_cluster

__all__ = ["uninterrupted"]

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(540)]

LOST_AT = 12


@pytest.fixture(scope="module")
def gangs(tmp_path_factory) -> Iterator[Gangs]:
    folder = tmp_path_factory.mktemp("elastic")
    (folder / "sitecustomize.py").write_text(STALE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        with running_cluster(SMALL, also=[SMALL], arrivals=Arrivals(heal_s=1.0)) as cluster:
            yield Gangs(cluster, folder)


def test_a_lost_slice_is_done_without_and_had_again_at_a_checkpoint(gangs, uninterrupted):
    # Host 1 of the second slice; and the one slice goes on slowly once the other is back.
    config = {"faults": [fault("host", 3, LOST_AT)], "nap": 0.8, "until_hosts": LOST_AT + 2, "hosts": 4}
    request = gangs.request("elastic", TWO, config=config, elastic=[1, 2], evictions=1)

    value = gangs.result(request)

    pair, alone, again = tries(request)
    log = gangs.cluster.log(request)
    assert (pair.began, pair.reached, alone.began, again.reached) == (0, LOST_AT, LOST_AT - LOST_AT % EVERY, STEPS)
    # It left with a save that was due anyway, and no step was done again.
    assert again.began == alone.reached > LOST_AT + 2
    assert again.began % EVERY == 0
    assert re.search(rf"slice tests-shared-2 free: saved at step {again.began}, to go on with more slices", log)

    two = r"3 stale MEGASCALE_COORDINATOR_ADDRESS=127\.\S+ .*NUM_SLICES=2 .*SLICE_ID=0"
    assert re.match(two, pair.environment)
    assert alone.environment == "3 stale"
    assert re.match(two, again.environment)

    assert_losses([pair, alone, again], uninterrupted)
    kept = [
        step
        for each, after in itertools.zip_longest((pair, alone, again), (alone.began, again.began))
        for step in each.losses
        if after is None or step <= after
    ]
    assert kept == list(range(1, STEPS + 1))
    told = [point.step for point in series(value["series"])]
    assert told == sorted(set(told))
    assert told[-1] == STEPS

    assert value["metrics"]["loss"] == pytest.approx(uninterrupted[STEPS], rel=1e-6)
    assert (value["failures"], value["evictions"], value["processes"], value["devices"]) == (0, 1, 4, 16)
    assert value["resizes"] == [
        {"at_step": alone.began, "slices": 1, "why": "slice tests-shared-1 lost"},
        {"at_step": again.began, "slices": 2, "why": "slice tests-shared-2 free"},
    ]
    # Seconds on one of the two slices are halves, so that all are of 16 chips.
    assert value["chip_hours"] * 3600 == pytest.approx(16 * value["held_s"], abs=1.0)
    parts = {name: seconds for name, seconds in value["goodput"].items() if name.endswith("_s") and name != "waiting_s"}
    assert sum(parts.values()) == pytest.approx(value["held_s"], abs=0.5)
    # The one that was left was taken at once.
    assert "waiting 30 s for more" not in log
