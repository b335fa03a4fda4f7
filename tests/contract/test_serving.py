"""Applications with a service of their own, on each backend: real rollouts on real slices."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.model import application
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.observation import JobState
from airflow_raytpu.storage import staging
from airflow_raytpu.storage.code import find_code
from tests.contract.serving_stage import SOURCE, ServingStage
from tests.kubernetes_cluster import running_kubernetes
from tests.simulated_cluster import short_folder

pytestmark = pytest.mark.cluster
NAME = application.service_called("tests", "echo").name


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("serving")
    (folder / "contract_app.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return staging.stage([find_code("contract_app:build", "app")], (folder / "storage").as_uri())


@contextlib.contextmanager
def _simulated(code: str, storage: Path) -> Iterator[ServingStage]:
    with short_folder() as root:

        def url(name: str) -> str:
            found = cluster.attach(root, name)
            return found.record.endpoint if found is not None else ""

        try:
            yield ServingStage(lambda: SimulatedBackend(root), code, storage, url)
        finally:
            for left in cluster.living(root):
                cluster.remove(left)


@contextlib.contextmanager
def _kuberay(code: str, storage: Path) -> Iterator[ServingStage]:
    with running_kubernetes() as kubernetes:
        k = kubernetes.k

        def url(name: str) -> str:
            known = ("default", f"{name}-serve-svc", "8000") in k.proxy.backends
            return f"{k.url}/api/v1/namespaces/default/services/{name}-serve-svc:8000/proxy/" if known else ""

        def restart(name: str) -> None:
            kubernetes.restart_operator()
            (head,) = [
                pod["metadata"]["name"]
                for pod in k.items("pods")
                if pod["metadata"]["labels"]["ray.io/node-type"] == "head"
                and pod["metadata"]["labels"]["airflow-raytpu/request"] == name
            ]
            k.remove("pods", head)

        yield ServingStage(kubernetes.open, code, storage, url, k.token, restart)


_PLACES = {"simulated": _simulated, "kuberay": _kuberay}


@pytest.fixture(params=list(_PLACES))
async def stage(request: pytest.FixtureRequest, code: str, tmp_path: Path) -> AsyncIterator[ServingStage]:
    with _PLACES[request.param](code, tmp_path) as made:
        yield made


async def test_a_service_serves_the_last_version_that_proved_good_until_it_is_deleted(stage: ServingStage) -> None:
    broken = await stage.deploy("v0", fault="init")
    assert broken.job is JobState.FAILED
    assert broken.outcome is not None
    assert "the weights of v0 are missing" in broken.outcome.cause
    # Nothing had served, so nothing is kept; the next one begins with a service of its own.
    first = await stage.deploy("v1")
    assert first.outcome is not None
    assert first.outcome.succeeded, first.outcome
    assert first.outcome.value["previous"] is None
    await stage.until(NAME, lambda answer: answer == "v1")

    unsound = await stage.deploy("v2", fault="smoke")
    assert unsound.outcome is not None
    assert unsound.outcome.code == "RT304"
    assert f"Version {first.outcome.value['version']}, the last good one, serves again" in unsound.outcome.cause
    assert await stage.answer(NAME) == "v1"

    second = await stage.deploy("v2")
    assert second.outcome is not None
    assert second.outcome.value["previous"] == first.outcome.value["version"]
    assert await stage.answer(NAME) == "v2"

    async with stage.backend() as backend:
        # What had ended is looked at by somebody who came late: nothing changes.
        await backend.observe(stage.rollout("v1"))
        if stage.restart is not None:
            await _comes_back(stage, stage.restart)
        await _lives_until_deleted(stage, backend)


async def _comes_back(stage: ServingStage, restart: Callable[[str], None]) -> None:
    """The last good version, and to it a rollout goes back, though the head has forgotten everything."""
    restart(NAME)
    await stage.until(NAME, lambda answer: answer != "v2")
    await stage.until(NAME, lambda answer: answer == "v2")
    unsound = await stage.deploy("v3", fault="init")
    assert unsound.outcome is not None
    assert "the last good one, serves again" in unsound.outcome.cause
    assert await stage.answer(NAME) == "v2"


async def _lives_until_deleted(stage: ServingStage, backend: Backend) -> None:
    with pytest.raises(RequestError, match="RayServeDeleteOperator"):
        await backend.ensure(stage.rollout("v4", slice="v6e:2x4"))
    assert await backend.orphans("tests", 0.0) == []
    assert await backend.slices() != []
    service = application.service_called("tests", "echo")
    await backend.stop(service)
    assert await stage.answer(NAME) == "v2"
    await backend.delete(service)
    assert await backend.slices() == []
    await backend.delete(service)
