"""The fake server's deletions, rights, discovery, proxy and trouble."""

from __future__ import annotations

import asyncio
import contextlib
import json

import aiohttp
import pytest
from yarl import URL

from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.refusal import Refusal
from tests.doubles.ray_dashboard import RayDashboard
from tests.unit.doubles.asking import Ray, pod_template, ray_cluster

_SOON_S = 5.0
_READER = [{"verbs": ["get", "list"], "apiGroups": ["ray.io"], "resources": ["rayclusters"]}]


def owned(name, owner):
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    reference |= {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return {"metadata": {"name": name, "ownerReferences": [reference]}, "spec": pod_template()["spec"]}


async def until(condition):
    async with asyncio.timeout(_SOON_S):
        while not condition():
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def asking(k, token):
    client = await TestAccess(k.url, token).client()
    try:
        yield Ray(client)
    finally:
        await client.close()


async def test_what_an_object_owns_goes_with_it(k, ray):
    k.put("pods", owned("p", await ray.create(ray_cluster())))
    await ray.delete("a")
    await until(lambda: k.find("pods", "p") is None)


async def test_foreground_deletion_waits_for_garbage_collection(k, ray):
    k.collects = False
    k.put("pods", owned("p", await ray.create(ray_cluster())))
    marked = await ray.delete("a", propagation_policy="Foreground")
    assert marked["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert marked["metadata"]["deletionTimestamp"]
    assert (await ray.get("a"))["metadata"]["deletionTimestamp"]
    k.collects = True
    k.put("configmaps", {"metadata": {"name": "anything"}})
    await until(lambda: k.find("rayclusters", "a") is None)
    assert k.find("pods", "p") is None


async def test_orphans_stay(k, ray):
    k.put("pods", owned("p", await ray.create(ray_cluster())))
    await ray.delete("a", body={"propagationPolicy": "Orphan"})
    await until(lambda: k.find("rayclusters", "a") is None)
    assert "ownerReferences" not in k.find("pods", "p")["metadata"]


async def test_a_finalizer_holds_an_object(ray):
    body = ray_cluster()
    body["metadata"]["finalizers"] = ["tests.io/hold"]
    await ray.create(body)
    await ray.delete("a")
    held = await ray.get("a")
    assert held["metadata"]["deletionTimestamp"]
    assert (await ray.delete("a"))["metadata"]["deletionTimestamp"] == held["metadata"]["deletionTimestamp"]
    await ray.patch("a", {"metadata": {"finalizers": None}})
    assert (await ray.refused(ray.get("a"))).code == 404


async def test_many_at_once(k, ray):
    for name in "ab":
        await ray.create(ray_cluster(name))
    await ray.delete_all()
    assert k.items("rayclusters") == []


async def test_rights(k, ray):
    async with asking(k, k.account("reader", _READER)) as reader:
        await reader.list()
        refusal = await reader.refused(reader.create(ray_cluster()))
        assert (refusal.code, refusal.body["reason"]) == (403, "Forbidden")
        for word in ("create", '"rayclusters"', '"ray.io"', '"default"', "system:serviceaccount:default:reader"):
            assert word in refusal.body["message"]
        k.edit("roles", "reader", {"rules": [{**_READER[0], "verbs": ["*"]}]})
        await reader.create(ray_cluster())  # at once
    async with asking(k, "wrong") as nobody:
        refusal = await nobody.refused(nobody.list())
        assert (refusal.code, refusal.body["reason"]) == (401, "Unauthorized")


async def test_asking_what_one_may(k):
    from kubernetes_asyncio.client import AuthorizationV1Api

    client = await TestAccess(k.url, k.account("reader", _READER)).client()

    async def may(**attributes):
        body = {"spec": {"resourceAttributes": {"group": "ray.io", "namespace": "default", **attributes}}}
        body |= {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        return (await AuthorizationV1Api(client).create_self_subject_access_review(body)).status.allowed

    assert await may(verb="list", resource="rayclusters")
    assert not await may(verb="delete", resource="rayclusters")
    assert not await may(verb="get", group="", resource="services", subresource="proxy")
    await client.close()


async def test_a_token_for_an_account(k, client):
    from kubernetes_asyncio.client import CoreV1Api

    k.account("reader", _READER)
    body = {"spec": {"audiences": [], "expirationSeconds": 600}, "apiVersion": "authentication.k8s.io/v1"}
    made = await CoreV1Api(client).create_namespaced_service_account_token(
        "reader", "default", {**body, "kind": "TokenRequest"}
    )
    async with asking(k, made.status.token) as reader:
        await reader.list()


async def test_discovery(k, client):
    from kubernetes_asyncio.client import ApiextensionsV1Api, ApisApi, CoreV1Api, CustomObjectsApi, VersionApi

    assert (await VersionApi(client).get_code()).minor == "36"
    assert "ray.io" in {group.name for group in (await ApisApi(client).get_api_versions()).groups}
    assert "pods" in {each.name for each in (await CoreV1Api(client).get_api_resources()).resources}
    assert "rayjobs" in {
        each.name for each in (await CustomObjectsApi(client).get_api_resources("ray.io", "v1")).resources
    }
    crds = await ApiextensionsV1Api(client).list_custom_resource_definition()
    assert "rayclusters.ray.io" in {each.metadata.name for each in crds.items}
    assert crds.items[0].metadata.annotations["controller-gen.kubebuilder.io/version"]


async def test_a_quota(k):
    k.put("resourcequotas", {"metadata": {"name": "tpus"}, "spec": {"hard": {"requests.google.com/tpu": "4"}}})
    pod = pod_template(resources={"limits": {"google.com/tpu": "4"}})
    k.put("pods", {"metadata": {"name": "p"}, **pod})
    with pytest.raises(Refusal) as refusal:
        k.put("pods", {"metadata": {"name": "q"}, **pod})
    assert refusal.value.code == 403
    numbers = (
        "requested: requests.google.com/tpu=4, used: requests.google.com/tpu=4, limited: requests.google.com/tpu=4"
    )
    assert f"exceeded quota: tpus, {numbers}" in refusal.value.message


async def test_admission(k, ray):
    def deny(verb, kind, item):
        return Refusal(400, "", "denied") if (verb, kind.plural) == ("create", "rayclusters") else None

    k.objects.admission.append(deny)
    assert (await ray.refused(ray.create(ray_cluster()))).body["message"] == "denied"


async def test_the_service_proxy(k):
    dashboard = RayDashboard(token="ours", log_batches=["one\ntwo\n"])
    async with dashboard.running(), aiohttp.ClientSession(headers={"Authorization": f"Bearer {k.token}"}) as session:
        base = f"{k.url}/api/v1/namespaces/default/services/a-head-svc:8265/proxy"
        async with session.get(f"{base}/api/version") as reply:
            assert reply.status == 404
        k.serve("a-head-svc", {8265: dashboard.url})
        async with session.get(f"{base}/api/version") as reply:
            assert reply.status == 401  # the server's own Authorization is not Ray's, and is not passed on


async def test_what_the_proxy_passes_on(k):
    from aiohttp import web

    async def echo(request):
        if request.headers.get("Upgrade"):
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.send_str(json.dumps(dict(request.headers)))
            await socket.send_bytes((await socket.receive()).data[::-1])
            await socket.close()
            return socket
        seen = {"headers": dict(request.headers), "path": request.raw_path, "body": await request.text()}
        return web.json_response(seen, status=209)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    k.serve("a", {8265: f"http://127.0.0.1:{runner.addresses[0][1]}"})
    headers = {"Authorization": f"Bearer {k.token}", "X-Ray-Authorization": "Bearer ray"}
    base = f"{k.url}/api/v1/namespaces/default/services/a:8265/proxy"
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.put(URL(f"{base}/api/x/?q=1%2F2", encoded=True), data=b"text") as reply:
            seen = await reply.json()
            assert reply.status == 209
        assert (seen["path"], seen["body"]) == ("/api/x/?q=1%2F2", "text")
        async with session.ws_connect(f"{base}/logs/tail") as socket:
            seen_by_socket = json.loads((await socket.receive()).data)
            await socket.send_bytes(b"abc")
            assert (await socket.receive()).data == b"cba"
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        for each in (seen["headers"], seen_by_socket):
            assert "Authorization" not in each
            assert each["X-Ray-Authorization"] == "Bearer ray"
        await runner.cleanup()
        async with session.get(f"{base}/x") as reply:
            assert reply.status == 503
            assert "connection refused" in (await reply.json())["message"]
    assert k.count("update", "services/proxy") == 1


@pytest.mark.parametrize("status", [429, 500, 503, "timeout"])
async def test_faults_with_an_answer(k, ray, status):
    k.fail("create", "rayclusters", status, times=2, retry_after=7)
    for _ in range(2):
        refusal = await ray.refused(ray.create(ray_cluster()))
        assert refusal.code == (504 if status == "timeout" else status)
        assert refusal.headers["Retry-After"] == "7"
    await ray.create(ray_cluster())
    assert k.count("create", "rayclusters") == 3


@pytest.mark.parametrize(("fault", "carried_out"), [("reset", False), ("drop", True), ("cut", True)])
async def test_lost_connections(k, ray, fault, carried_out):
    k.fail("create", "*", fault)
    with pytest.raises(aiohttp.ClientError):
        await ray.create(ray_cluster())
    assert (k.find("rayclusters", "a") is not None) is carried_out


async def test_no_answer_at_all(k, ray):
    k.fail("get", "rayclusters", "hang")
    with pytest.raises(TimeoutError):
        await ray.get("a", _request_timeout=0.05)


async def test_an_outage(k, ray):
    await ray.create(ray_cluster())
    async with k.outage():
        with pytest.raises(aiohttp.ClientConnectorError):
            await ray.list()
    assert len((await ray.list())["items"]) == 1
