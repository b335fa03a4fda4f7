"""The three ways to a cluster's Ray, each against a dashboard that wants its token."""

from __future__ import annotations

import base64

import pytest

from airflow_raytpu.backends import rayapi
from airflow_raytpu.backends.kuberay.api import KubeApi
from airflow_raytpu.backends.kuberay.reach import Reach, Way
from airflow_raytpu.model.errors import BackendUnreachable, RequestError
from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.doubles.ray_dashboard import RayDashboard


@pytest.fixture
async def ray():
    async with RayDashboard().running() as dashboard:
        yield dashboard


@pytest.fixture
async def api(ray):
    async with FakeKubernetes() as k:
        k.put("secrets", {"metadata": {"name": "c"}, "data": {"auth_token": base64.b64encode(b"secret").decode()}})
        k.put("secrets", {"metadata": {"name": "empty"}, "data": {}})
        k.serve("c-head-svc", {8265: ray.url})
        api = KubeApi(TestAccess(k.url, k.token), "default")
        yield api
        await api.close()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(rayapi, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(rayapi, "_LONGEST_PAUSE_S", 0.0)


async def version(reach: Reach, api: KubeApi) -> str:
    client = await reach.open(api, "c")
    try:
        return (await client.version())["ray_version"]
    finally:
        await client.close()


async def test_the_proxy_takes_both_tokens_apart(api, ray):
    assert await version(Reach(way=Way.PROXY), api) == "2.60.0"


async def test_a_stated_url_has_namespace_and_cluster_in_it(api, ray):
    # A path of the double's own stands for what an ingress makes of it.
    reach = Reach(way=Way.URL, url=ray.url + "/?{namespace}/{cluster}#")
    assert reach.link("default", "c") == f"{ray.url}/?default/c#"
    plain = Reach(way=Way.URL, url=ray.url)
    assert await version(plain, api) == "2.60.0"


async def test_a_service_is_called_by_its_name_in_the_cluster(api, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(BackendUnreachable, match=r"http://c-head-svc\.default\.svc:8265"):
        await version(Reach(), api)


async def test_a_token_that_is_not_there_is_waited_for(api):
    with pytest.raises(BackendUnreachable, match="Secret absent"):
        await Reach(way=Way.PROXY).open(api, "absent")
    with pytest.raises(BackendUnreachable, match="holds no auth_token"):
        await Reach(way=Way.PROXY).open(api, "empty")


@pytest.mark.parametrize(
    ("way", "url", "says"),
    [
        ("tunnel", "", "auto, service, proxy, url"),
        ("url", "", "Give both"),
        ("proxy", "http://x", "Give both"),
        ("url", "http://x/{name}", "only \\{namespace\\}|Only \\{namespace\\}"),
        ("url", "http://x/{", "placeholder"),
    ],
)
def test_a_way_that_cannot_be_is_refused(way, url, says):
    with pytest.raises(RequestError, match=says):
        Reach.of(way, url)
