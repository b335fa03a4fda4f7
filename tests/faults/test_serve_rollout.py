"""Rollouts on a real cluster, under load: healthy, broken in three ways, and stopped in the middle."""

import asyncio
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.model.observation import JobState
from airflow_raytpu.model.policies import Rollout
from airflow_raytpu.model.request import Kind
from airflow_raytpu.storage import staging
from airflow_raytpu.storage.code import find_code
from tests.simulated_cluster import job_request, wait_for

pytestmark = pytest.mark.cluster

SOURCE = """
import time
from ray import serve
from starlette.responses import JSONResponse

@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0.1})
class Echo:
    def __init__(self, version, fault):
        if fault == "init":
            raise ValueError("the weights of v2 are missing")
        if fault == "slow":
            time.sleep(600)
        self.version, self.fault = version, fault

    async def __call__(self, request):
        return JSONResponse({"version": self.version}, status_code=500 if self.fault == "smoke" else 200)

def build(model, version, fault=""):
    return Echo.bind(version, fault)
"""


class Load:
    """Requests one after another on a kept-alive connection, until the block ends."""

    def __init__(self, url):
        self.url, self.failed, self.versions = url, [], set()
        self.count = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        with requests.Session() as session:
            while not self._done.wait(0.02):
                self.count += 1
                try:
                    reply = session.get(self.url, timeout=30)
                except requests.RequestException as error:
                    self.failed.append(repr(error))
                    continue
                if reply.status_code != 200:
                    self.failed.append((reply.status_code, reply.text[:200]))
                else:
                    self.versions.add(reply.json()["version"])

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()


class Deployer:
    numbers = itertools.count()

    def __init__(self, cluster, code, folder):
        self.cluster, self.code, self.folder = cluster, code, folder

    def request(self, version, fault="", name="echo", deadline_s=120.0):
        rollout = Rollout(smoke=[{"path": "/", "contains": version}]).to_dict() | {"deadline_s": deadline_s}
        return job_request(
            f"serve-{next(self.numbers)}",
            self.folder / "run",
            self.code,
            on=self.cluster.request,
            kind=Kind.SERVE,
            arguments={
                "app": "rollout_app:build",
                "app_args": {"version": version, "fault": fault},
                "model": None,
                "name": name,
                "route_prefix": f"/{name}",
                "rollout": rollout,
            },
        )

    def deploy(self, *args, **kwargs):
        request = self.request(*args, **kwargs)
        seen = self.cluster.run(request)
        assert seen.outcome is not None, self.cluster.log(request)
        return seen


@pytest.fixture(scope="module")
def deployer(simulated_cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rollout")
    (folder / "code").mkdir()
    (folder / "code" / "rollout_app.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "code"))
        code = staging.stage([find_code("rollout_app:build", "app")], (folder / "storage").as_uri())
    yield Deployer(simulated_cluster, code, folder)
    facts, token = simulated_cluster.facts, (simulated_cluster.found.folder / "token").read_text()
    requests.delete(
        f"{facts['dashboard']}/api/serve/applications/", headers={"Authorization": f"Bearer {token}"}, timeout=60
    ).raise_for_status()


def test_rollouts_end_healthy_or_back_on_the_last_good_version_and_no_request_fails(deployer):
    first = deployer.deploy("v1")
    assert first.outcome.succeeded, first.outcome
    assert first.outcome.value["previous"] is None
    assert first.outcome.value["replicas"] == 2
    assert [answer["status"] for answer in first.outcome.value["smoke"]] == [200]
    url = first.outcome.value["endpoint"]

    neighbour = deployer.deploy("n1", name="neighbour")
    assert neighbour.outcome.succeeded

    with Load(url) as load:
        broken = deployer.deploy("v2", fault="init")
        assert (broken.job, broken.outcome.code) == (JobState.FAILED, "RT304")
        assert "the weights of v2 are missing" in broken.outcome.cause
        assert f"Version {first.outcome.value['version']}, the last good one, serves again" in broken.outcome.cause

        slow = deployer.deploy("v2", fault="slow", deadline_s=4.0)
        assert slow.outcome.code == "RT304"
        assert "not healthy in time" in slow.outcome.cause

        again = deployer.deploy("v1")
        assert again.outcome.succeeded
        assert again.outcome.value["version"] == first.outcome.value["version"]
        assert load.versions == {"v1"}

        second = deployer.deploy("v2")
        assert second.outcome.succeeded
        assert second.outcome.value["previous"] == first.outcome.value["version"]
        wait_for(lambda: "v2" in load.versions)
    assert load.failed == []
    assert load.count > 50

    unsound = deployer.deploy("v3", fault="smoke")
    assert unsound.outcome.code == "RT304"
    assert "failed smoke request 1 of 1: status 500" in unsound.outcome.cause
    assert requests.get(url, timeout=30).json() == {"version": "v2"}
    assert requests.get(neighbour.outcome.value["endpoint"], timeout=30).json() == {"version": "n1"}


@pytest.mark.long
def test_a_rollout_that_is_stopped_leaves_the_last_good_version(deployer):
    good = deployer.deploy("s1", name="stopped")
    request = deployer.request("s2", fault="slow", name="stopped")

    async def stop_in_the_middle():
        backend = SimulatedBackend(deployer.cluster.root)
        try:
            async with asyncio.timeout(120):
                while not await backend.ensure(request):
                    await asyncio.sleep(0.2)
                while (seen := await backend.observe(request)).progress is None or not seen.progress.message:
                    await asyncio.sleep(0.2)
                await backend.stop(request)
                return await backend.observe(request)
        finally:
            await backend.close()

    seen = asyncio.run(stop_in_the_middle())
    assert seen.job is JobState.STOPPED
    assert seen.outcome is None
    url = good.outcome.value["endpoint"]
    deadline = time.monotonic() + 60
    assert wait_for(lambda: requests.get(url, timeout=30).json() == {"version": "s1"}, deadline - time.monotonic())
    # The next rollouts start from there, and two that begin at once come one after the other.
    with ThreadPoolExecutor(2) as pool:
        both = [
            each.outcome for each in pool.map(lambda version: deployer.deploy(version, name="stopped"), ("s3", "s4"))
        ]
    assert all(outcome.succeeded for outcome in both), both
    versions = {outcome.value["previous"]: outcome.value["version"] for outcome in both}
    first = versions[good.outcome.value["version"]]
    last = versions[first]
    answer = requests.get(url, timeout=30).json()["version"]
    assert answer == ("s3" if both[0].value["version"] == last else "s4")
