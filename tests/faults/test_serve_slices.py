"""A replica over a whole slice: on one slice, on a free one, or on none and with the reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import requests

from airflow_raytpu.model.policies import Rollout
from airflow_raytpu.model.request import Kind
from airflow_raytpu.storage import staging
from airflow_raytpu.storage.code import find_code
from tests.simulated_cluster import SimulatedCluster, job_request, running_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SHAPE = "v6e:2x4@4t"

SOURCE = """
import os
import ray
from ray import serve
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from starlette.responses import JSONResponse
from airflow_raytpu.runtime import replicas


@ray.remote(num_cpus=1, resources={"TPU": 4})
def host():
    return os.environ["TPU_NAME"], int(os.environ["TPU_WORKER_ID"])


@serve.deployment
class Spread:
    def __init__(self, version):
        self.version = version
        other = PlacementGroupSchedulingStrategy(ray.util.get_current_placement_group(), 1)
        self.hosts = [(os.environ["TPU_NAME"], int(os.environ["TPU_WORKER_ID"]))]
        self.hosts.append(ray.get(host.options(scheduling_strategy=other).remote()))

    async def __call__(self, request):
        return JSONResponse({"version": self.version, "hosts": self.hosts})


@serve.deployment
class Loose:
    async def __call__(self, request):
        return JSONResponse({"version": "loose"})


def build(model, version):
    return Spread.options(**replicas.options()).bind(version)


def loose(model):
    return Loose.bind()
"""


class Deployer:
    numbers = itertools.count()

    def __init__(self, cluster: SimulatedCluster, code: str, folder) -> None:
        self.cluster, self.code, self.folder = cluster, code, folder

    def deploy(self, name="spread", app="build", replica=SHAPE, **app_args):
        request = job_request(
            f"serve-{next(self.numbers)}",
            self.folder / "run",
            self.code,
            on=self.cluster.request,
            kind=Kind.SERVE,
            slice=SHAPE,
            arguments={
                "app": f"spread_app:{app}",
                "app_args": app_args,
                "model": None,
                "name": name,
                "route_prefix": f"/{name}",
                "replica": replica,
                "rollout": Rollout(smoke=[{"path": "/"}]).to_dict() | {"deadline_s": 60.0},
            },
        )
        seen = self.cluster.run(request)
        assert seen.outcome is not None, self.cluster.log(request)
        return seen.outcome


@pytest.fixture(scope="module")
def deployer(tmp_path_factory) -> Iterator[Deployer]:
    folder = tmp_path_factory.mktemp("spread")
    (folder / "code").mkdir()
    (folder / "code" / "spread_app.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "code"))
        code = staging.stage([find_code("spread_app:build", "app")], (folder / "storage").as_uri())
    with running_cluster(SHAPE, also=(SHAPE,)) as cluster:
        yield Deployer(cluster, code, folder)


def hosts(outcome):
    answer = requests.get(outcome.value["endpoint"], timeout=30).json()
    return answer["version"], sorted(map(tuple, answer["hosts"]))


def test_a_replica_has_one_whole_slice_and_its_next_version_another(deployer):
    first = deployer.deploy(version="v1")
    assert first.succeeded, first
    version, on = hosts(first)
    assert version == "v1"
    assert [worker for _, worker in on] == [0, 1]
    (name,) = {name for name, _ in on}

    again = deployer.deploy(version="v1")
    assert again.succeeded, again
    assert hosts(again) == ("v1", on)

    second = deployer.deploy(version="v2")
    assert second.succeeded, second
    version, now = hosts(second)
    assert version == "v2"
    (other,) = {name for name, _ in now}
    assert other != name


def test_an_application_that_does_not_take_its_slice_is_told_so(deployer):
    outcome = deployer.deploy(name="loose", app="loose")
    assert outcome.code == "RT304"
    assert "has slice" in outcome.cause
    assert "to itself" in outcome.cause
