from __future__ import annotations

import pytest

from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.kinds import crds_folder
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.unit.doubles.asking import Ray


@pytest.fixture
def crds():
    folder = crds_folder()
    if folder is None:
        pytest.skip("KubeRay's CRDs are not here; RAYTPU_KUBERAY_CRDS names their folder")
    return folder


@pytest.fixture
async def k(crds):
    async with FakeKubernetes(crds=crds) as server:
        yield server


@pytest.fixture
async def client(k):
    found = await TestAccess(k.url, k.token).client()
    yield found
    await found.close()


@pytest.fixture
async def ray(client):
    """RayClusters through ``kubernetes_asyncio``."""
    return Ray(client)


@pytest.fixture
def threaded(crds):
    """A server that runs beside the test, for the client that blocks."""
    with FakeKubernetes.in_thread(crds) as server:
        yield server


@pytest.fixture
def sync_ray(threaded):
    import kubernetes

    configuration = kubernetes.client.Configuration(host=threaded.url)
    configuration.api_key["authorization"] = f"Bearer {threaded.token}"
    configuration.retries = False
    with kubernetes.client.ApiClient(configuration) as found:
        yield kubernetes.client.CustomObjectsApi(found)
