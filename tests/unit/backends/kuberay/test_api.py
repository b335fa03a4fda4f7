"""The Kubernetes client, over real HTTP on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from airflow_raytpu.backends.kuberay import connection
from airflow_raytpu.backends.kuberay.api import (
    NODES,
    PODS,
    RAYJOBS,
    SECRETS,
    Conflict,
    Exists,
    KubeApi,
    Pace,
    Resource,
)
from airflow_raytpu.model.errors import BackendUnreachable, ForbiddenError, ManifestError, NotInstalledError
from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.doubles.virtual_time import VirtualTime


def job(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name, **more}, "spec": {}}


@pytest.fixture
async def kubernetes() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as server:
        yield server


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
async def api(kubernetes: FakeKubernetes, time: VirtualTime) -> AsyncIterator[KubeApi]:
    client = KubeApi(
        TestAccess(kubernetes.url, kubernetes.token), "default", Pace(clock=time.clock, sleep=time.sleep, once=0.3)
    )
    yield client
    await client.close()
    assert not connection._lines


async def test_an_object_is_created_read_changed_listed_and_deleted(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    made = await api.create(RAYJOBS, job(labels={"app": "x"}))
    assert await api.get(RAYJOBS, "a") == made
    patched = await api.patch(RAYJOBS, "a", {"metadata": {"annotations": {"note": "1"}, "labels": {"app": None}}})
    assert patched is not None
    assert (patched["metadata"]["annotations"], patched["metadata"].get("labels", {})) == ({"note": "1"}, {})
    items, version = await api.list(RAYJOBS)
    assert ([each["metadata"]["name"] for each in items], version) == (["a"], patched["metadata"]["resourceVersion"])
    await api.delete(RAYJOBS, "a", made["metadata"]["uid"])
    assert await api.get(RAYJOBS, "a") is None
    assert await api.patch(RAYJOBS, "a", {"metadata": {"annotations": {"note": "2"}}}) is None


async def test_deleting_what_is_gone_or_another_by_now_leaves_it(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    await api.delete(RAYJOBS, "a", "some-uid")
    made = await api.create(RAYJOBS, job())
    await api.delete(RAYJOBS, "a", "some-uid")
    assert await api.get(RAYJOBS, "a") == made


async def test_a_name_that_is_taken_says_so(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    await api.create(RAYJOBS, job())
    with pytest.raises(Exists, match=r"rayjobs\.ray\.io a is there already"):
        await api.create(RAYJOBS, job())


async def test_a_stale_version_is_a_conflict(api: KubeApi) -> None:
    made = await api.create(RAYJOBS, job())
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "annotations": {"a": "1"}}}
    assert await api.patch(RAYJOBS, "a", stale) is not None
    with pytest.raises(Conflict):
        await api.patch(RAYJOBS, "a", {"metadata": {**stale["metadata"], "annotations": {"a": "2"}}})


async def test_a_list_goes_over_all_pages_by_label(
    kubernetes: FakeKubernetes, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_raytpu.backends.kuberay.api._PAGE", 3)
    for number in range(8):
        kubernetes.put("pods", pod(f"p{number}", {"even": str(number % 2 == 0).lower()}))
    assert len((await api.list(PODS))[0]) == 8
    assert [each["metadata"]["name"] for each in (await api.list(PODS, "even=true"))[0]] == ["p0", "p2", "p4", "p6"]


async def test_a_list_whose_place_is_lost_begins_again(
    kubernetes: FakeKubernetes, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_raytpu.backends.kuberay.api._PAGE", 2)
    for number in range(5):
        kubernetes.put("pods", pod(f"p{number}"))
    kubernetes.fail("list", "pods", 410, skip=1)
    assert len((await api.list(PODS))[0]) == 5


async def test_a_missing_kind_and_a_missing_namespace_are_told_apart(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    elsewhere = KubeApi(api.access, "nowhere")
    with pytest.raises(NotInstalledError, match="no namespace nowhere"):
        await elsewhere.create(RAYJOBS, job())
    assert await elsewhere.get(RAYJOBS, "a") is None
    await elsewhere.close()
    with pytest.raises(NotInstalledError, match=r"no rayjobs\.ray\.io of version v9"):
        await api.get(Resource("ray.io", "v9", "rayjobs", "RayJob"), "a")
    kubernetes.uninstall("rayjobs")
    for work in (api.get(RAYJOBS, "a"), api.create(RAYJOBS, job()), api.list(RAYJOBS), api.delete(RAYJOBS, "a", "u")):
        with pytest.raises(NotInstalledError, match="Install the KubeRay operator"):
            await work


async def test_a_missing_right_is_named_with_the_rule_to_add(kubernetes: FakeKubernetes, time: VirtualTime) -> None:
    rules = [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["get"]}]
    api = KubeApi(TestAccess(kubernetes.url, kubernetes.account("flow", rules)), "default")
    assert await api.get(RAYJOBS, "a") is None
    with pytest.raises(ForbiddenError) as refused:
        await api.create(RAYJOBS, job())
    assert str(refused.value) == (
        "system:serviceaccount:default:flow may not create rayjobs.ray.io in namespace default.\n"
        '  Give it a Role and RoleBinding with apiGroups ["ray.io"], resources ["rayjobs"], verbs ["create"].  [RT210]'
    )
    assert [await api.may(verb, RAYJOBS) for verb in ("get", "create")] == [True, False]
    with pytest.raises(ForbiddenError, match="may not list nodes in the whole cluster"):
        await api.nodes()
    await api.close()


async def test_a_used_up_quota_is_told_with_its_numbers(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    kubernetes.put("resourcequotas", {"metadata": {"name": "few"}, "spec": {"hard": {"count/rayjobs.ray.io": "1"}}})
    await api.create(RAYJOBS, job("a"))
    with pytest.raises(ForbiddenError, match=r"Quota few .* used: count/rayjobs.ray.io=1, limited: .*=1\."):
        await api.create(RAYJOBS, job("b"))


async def test_what_the_api_server_finds_wrong_is_told_by_field(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    with pytest.raises(ManifestError, match=r"metadata\.labels: .*a:b"):
        await api.create(RAYJOBS, job(labels={"run": "a:b"}))
    assert kubernetes.count("create") == 1


async def test_a_field_that_the_kind_does_not_have_is_refused(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    spec = {"type": "object", "properties": {"colour": {"type": "string"}}}
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "singular": "thing", "kind": "Thing"}
    kubernetes.install(
        {
            "metadata": {"name": "things.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]},
        }
    )
    things = Resource("example.com", "v1", "things", "Thing")
    body = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}}
    with pytest.raises(ManifestError, match=r"refuses Thing a: spec\.color: no such field"):
        await api.create(things, {**body, "spec": {"color": "red"}})
    await api.create(things, {**body, "spec": {"colour": "red"}})
    with pytest.raises(ManifestError, match=r"spec\.color: no such field"):
        await api.patch(things, "a", {"spec": {"color": "red"}})


@pytest.mark.parametrize("size", [1_700_000, 3_500_000])
async def test_what_is_too_large_is_not_sent_again(kubernetes: FakeKubernetes, api: KubeApi, size: int) -> None:
    body = {**job(), "spec": {"entrypoint": "x" * size}}
    with pytest.raises(ManifestError, match=r"too large .*HTTP (500|413)"):
        await api.create(RAYJOBS, body)
    assert kubernetes.count("create", "rayjobs") == 1


async def test_the_server_says_its_version_kinds_and_machines(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    kubernetes.put("nodes", {"metadata": {"name": "n", "labels": {"pool": "tpu"}}})
    assert (await api.server_version()).startswith("v1.")
    assert (await api.crds())["rayjobs"][0] == "v1"
    assert await api.crds("nobody.example.com") == {}
    assert [each["metadata"]["name"] for each in await api.nodes("pool=tpu")] == ["n"]
    assert await api.nodes("pool=cpu") == []
    assert await api.list(NODES) == (await api.nodes(), (await api.list(NODES))[1])


async def test_equal_keys_share_one_client_and_the_last_user_closes_it(kubernetes: FakeKubernetes) -> None:
    access = Counting(kubernetes.url, kubernetes.token)
    one, two = KubeApi(access, "default"), KubeApi(access, "kube-system")
    await one.get(SECRETS, "a")
    await two.get(SECRETS, "a")
    await one.close()
    await one.close()
    assert (access.made, access.clients[0].rest_client.pool_manager.closed) == (1, False)
    await two.close()
    assert access.clients[0].rest_client.pool_manager.closed


async def test_a_rotated_token_is_loaded_again_and_the_old_client_closed(kubernetes: FakeKubernetes) -> None:
    access = Counting(kubernetes.url, "old")
    api = KubeApi(access, "default")
    kubernetes.authority.users["old"] = "admin"
    assert await api.get(SECRETS, "a") is None
    del kubernetes.authority.users["old"]
    access.token = kubernetes.token
    assert await api.get(SECRETS, "a") is None
    assert access.made == 2
    assert access.clients[0].rest_client.pool_manager.closed
    await api.close()


async def test_credentials_that_are_unknown_for_good_are_forbidden(
    kubernetes: FakeKubernetes, time: VirtualTime
) -> None:
    access = Counting(kubernetes.url, "wrong")
    api = KubeApi(access, "default", Pace(clock=time.clock, sleep=time.sleep))
    with pytest.raises(ForbiddenError, match=r"does not know who we are.*HTTP 401"):
        await api.get(SECRETS, "a")
    assert (access.made, kubernetes.count("get", "secrets")) == (2, 3)
    await api.close()


async def test_credentials_that_cannot_be_loaded_are_told(time: VirtualTime) -> None:
    class Broken:
        key = "broken"

        async def client(self) -> Any:
            from kubernetes_asyncio.config import ConfigException

            raise ConfigException("no such context")

    api = KubeApi(Broken(), "default", Pace(clock=time.clock, sleep=time.sleep))
    with pytest.raises(BackendUnreachable, match="cannot be loaded: ConfigException: no such context"):
        await api.get(SECRETS, "a")
    await api.close()


async def test_a_token_that_cannot_be_renewed_is_told(kubernetes: FakeKubernetes) -> None:
    access = Counting(kubernetes.url, kubernetes.token)
    api = KubeApi(access, "default")
    await api.get(SECRETS, "a")

    def refresh(_: Any) -> None:
        raise FileNotFoundError("no token file")

    access.clients[0].configuration.refresh_api_key_hook = refresh
    with pytest.raises(BackendUnreachable, match="cannot be loaded: FileNotFoundError: no token file"):
        await api.get(SECRETS, "a")
    await api.close()


async def test_the_proxy_says_who_we_are_with_the_token_of_the_moment(kubernetes: FakeKubernetes) -> None:
    access = TestAccess(kubernetes.url, kubernetes.token)
    api = KubeApi(access, "ml")
    door = await api.proxy("a-head-svc", 8265)
    assert door.url == f"{kubernetes.url}/api/v1/namespaces/ml/services/a-head-svc:8265/proxy"
    assert ((await door.headers())["authorization"], door.ssl) == (f"Bearer {kubernetes.token}", None)
    access.token = "rotated"
    assert (await door.arguments())["headers"]["authorization"] == "Bearer rotated"
    await api.close()


def pod(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


class Counting:
    """Access without a hook that renews tokens, as kubeconfigs with an exec plugin have it."""

    key = "counting"

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token
        self.clients: list[Any] = []

    @property
    def made(self) -> int:
        return len(self.clients)

    async def client(self) -> Any:
        from kubernetes_asyncio.client import ApiClient, Configuration

        configuration = Configuration(host=self.url)
        configuration.api_key["BearerToken"] = f"Bearer {self.token}"
        self.clients.append(ApiClient(configuration))
        return self.clients[-1]
