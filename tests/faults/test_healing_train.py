"""Training loses the only slice of its cluster, and goes on when that comes back."""

from __future__ import annotations

import re
import threading

import pytest

from airflow_raytpu.backends.simulated.state import Arrivals
from tests.faults.test_runtime_train import SOURCE
from tests.simulated_cluster import job_request, running_cluster, stage_files, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def test_training_goes_on_from_its_newest_checkpoint_on_the_slice_that_comes_back(tmp_path):
    with running_cluster("v6e:2x2", arrivals=Arrivals(heal_s=1.0)) as cluster:
        request = job_request(
            "heals",
            tmp_path,
            stage_files({"wares.py": SOURCE}, tmp_path / "code"),
            on=cluster.request,
            slice="v6e:2x2",
            arguments={
                "train_loop": "wares:loop",
                "train_loop_config": {"steps": 60, "nap": 0.2},
                "datasets": {},
                "checkpoint": {"every_steps": 5, "keep": 2},
                "failures": 0,
                "evictions": 1,
                "resume": "auto",
            },
        )
        commits = tmp_path / "checkpoints"

        def kill_the_host_after_two_commits() -> None:
            wait_for(lambda: len(list(commits.glob("*/raytpu-commit.json"))) >= 2, within_s=90)
            cluster.kill_host(0, 0)

        killer = threading.Thread(target=kill_the_host_after_two_commits)
        killer.start()
        seen = cluster.run(request)
        killer.join()

        assert seen.outcome is not None, cluster.log(request)
        assert seen.outcome.succeeded, seen.outcome
        value = seen.outcome.value
        assert (value["step"], value["failures"], value["evictions"]) == (60, 0, 1)
        (restored,) = re.findall(r"going on from step (\d+)", cluster.log(request))
        assert int(restored) >= 10
        assert [part.name for part in cluster.slices()] == ["tests-shared-1"]
