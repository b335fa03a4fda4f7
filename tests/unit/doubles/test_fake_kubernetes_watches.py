"""The fake server's lists and watches."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest

from tests.unit.doubles.asking import PLACE, ray_cluster

_SOON_S = 5.0


async def labelled(ray, name, **labels):
    body = ray_cluster(name)
    body["metadata"]["labels"] = labels
    return await ray.create(body)


def names(found):
    return [item["metadata"]["name"] for item in found["items"]]


async def next_or_end(events):
    async for event in events:
        return event
    return "END", None


async def version_now(ray):
    return (await ray.list())["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("x=1", ["a"]),
        ("x==1", ["a"]),
        ("x!=1", ["b", "c"]),
        ("x", ["a", "b"]),
        ("!x", ["c"]),
        ("x in (1, 2),y", ["b"]),
        ("x notin (1)", ["b", "c"]),
    ],
)
async def test_label_selectors(ray, selector, expected):
    await labelled(ray, "a", x="1")
    await labelled(ray, "b", x="2", y="1")
    await labelled(ray, "c")
    assert names(await ray.list(label_selector=selector)) == expected


async def test_selectors_that_do_not_fit(ray):
    assert (await ray.refused(ray.list(label_selector="x=a:b"))).code == 400
    assert (await ray.refused(ray.list(field_selector="spec.rayVersion=1"))).code == 400


async def test_field_selectors(k, ray, client):
    from kubernetes_asyncio.client import CoreV1Api

    await labelled(ray, "a")
    await labelled(ray, "b")
    assert names(await ray.list(field_selector="metadata.name=b")) == ["b"]
    for name, kind in (("a", "RayJob"), ("b", "RayJob"), ("a", "Pod")):
        involved = {"kind": kind, "name": name, "namespace": "default", "uid": f"{kind}-{name}"}
        k.put("events", {"metadata": {"generateName": f"{name}."}, "involvedObject": involved, "reason": "R"})
    core = CoreV1Api(client)
    found = await core.list_namespaced_event(
        "default", field_selector="involvedObject.kind=RayJob,involvedObject.name=a"
    )
    assert [each.involved_object.uid for each in found.items] == ["RayJob-a"]
    found = await core.list_namespaced_event("default", field_selector="involvedObject.uid=Pod-a")
    assert len(found.items) == 1


async def test_pages_are_of_one_moment(ray):
    for name in "abcde":
        await labelled(ray, name)
    first = await ray.list(limit=2)
    assert names(first) == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    await ray.delete("d")
    await labelled(ray, "cc")
    second = await ray.list(limit=2, _continue=first["metadata"]["continue"])
    assert names(second) == ["c", "d"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    last = await ray.list(limit=2, _continue=second["metadata"]["continue"])
    assert names(last) == ["e"]
    assert "continue" not in last["metadata"]


async def test_an_expired_page_brings_a_fresh_token(k, ray):
    for name in "abc":
        await labelled(ray, name)
    first = await ray.list(limit=1)
    k.compact()
    refusal = await ray.refused(ray.list(limit=1, _continue=first["metadata"]["continue"]))
    assert (refusal.code, refusal.body["reason"]) == (410, "Expired")
    assert names(await ray.list(limit=5, _continue=refusal.body["metadata"]["continue"])) == ["b", "c"]


async def test_a_watch_from_a_version_has_all_that_came_after(ray):
    await labelled(ray, "a")
    since = await version_now(ray)
    await labelled(ray, "b")
    await ray.status("a", {"status": {"state": "ready"}})
    await ray.delete("a")
    seen = [
        (event, item["metadata"]["name"]) async for event, item in ray.watch(resource_version=since, timeout_seconds=0)
    ]
    assert seen == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_watch_without_a_version_begins_with_what_there_is(ray):
    await labelled(ray, "a")
    async with asyncio.timeout(_SOON_S), contextlib.aclosing(ray.watch()) as events:
        assert (await anext(events))[0] == "ADDED"
        coming = asyncio.ensure_future(anext(events))
        await labelled(ray, "b")
        assert (await coming)[1]["metadata"]["name"] == "b"


async def test_a_watch_sees_objects_enter_and_leave_its_selection(ray):
    since = await version_now(ray)
    await labelled(ray, "a", x="0")
    await ray.patch("a", {"metadata": {"labels": {"x": "1"}}})
    await ray.patch("a", {"metadata": {"labels": {"y": "1"}}})
    await ray.patch("a", {"metadata": {"labels": {"x": "2"}}})
    options = {"resource_version": since, "label_selector": "x=1", "timeout_seconds": 0}
    assert [event async for event, _ in ray.watch(**options)] == ["ADDED", "MODIFIED", "DELETED"]


async def test_a_watch_from_an_old_version_is_200_and_then_an_error(k, ray):
    since = await version_now(ray)
    k.compact()
    events = [each async for each in ray.watch(resource_version=since)]
    assert [(event, item["code"], item["reason"]) for event, item in events] == [("ERROR", 410, "Expired")]


def test_the_sync_client_raises_that(threaded, sync_ray):
    from kubernetes import watch
    from kubernetes.client import ApiException

    threaded.compact()
    stream = watch.Watch().stream(
        sync_ray.list_namespaced_custom_object, *PLACE, resource_version="1", timeout_seconds=5
    )
    with pytest.raises(ApiException) as error:
        list(stream)
    assert error.value.status == 410


def test_the_sync_client_loses_its_watch_with_the_server(threaded, sync_ray):
    import urllib3
    from kubernetes import watch

    sync_ray.create_namespaced_custom_object(*PLACE, ray_cluster())
    stream = watch.Watch().stream(sync_ray.list_namespaced_custom_object, *PLACE, timeout_seconds=30)
    assert next(stream)["type"] == "ADDED"
    threaded.run(threaded.stop())
    with pytest.raises(urllib3.exceptions.ProtocolError):
        next(stream)


async def test_bookmarks(k, ray):
    k.bookmark_every_s = 0.05
    since = await version_now(ray)
    async with (
        asyncio.timeout(_SOON_S),
        contextlib.aclosing(ray.watch(resource_version=since, allow_watch_bookmarks=True)) as events,
    ):
        event, item = await anext(events)
        assert (event, item["metadata"]["resourceVersion"]) == ("BOOKMARK", since)
        assert item["kind"] == "RayCluster"
    last = [each async for each in ray.watch(resource_version=since, timeout_seconds=0, allow_watch_bookmarks=True)]
    assert [event for event, _ in last] == ["BOOKMARK"]  # just before the deadline
    assert [each async for each in ray.watch(resource_version=since, timeout_seconds=0)] == []


async def test_a_watch_that_lists_marks_where_the_list_ends(k, ray, client):
    await labelled(ray, "a")
    asked = {"watch": "true", "sendInitialEvents": "true", "allowWatchBookmarks": "1", "timeoutSeconds": "0"}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {k.token}"}) as session:
        url = f"{k.url}/apis/ray.io/v1/namespaces/default/rayclusters"
        async with session.get(url, params=asked) as reply:
            assert reply.status == 422
        async with session.get(url, params={**asked, "resourceVersionMatch": "NotOlderThan"}) as reply:
            text = await reply.text()
    assert '"k8s.io/initial-events-end": "true"' in text.splitlines()[1]


async def test_a_version_of_the_future(ray):
    ahead = str(int(await version_now(ray)) + 1000)
    refusal = await ray.refused(ray.list(resource_version=ahead))
    assert (refusal.code, refusal.headers["Retry-After"]) == (504, "1")


@pytest.mark.parametrize("how", ["end", "expired"])
async def test_watches_are_cut_in_order(k, ray, how):
    events = ray.watch(resource_version=await version_now(ray))
    coming = asyncio.ensure_future(next_or_end(events))
    async with asyncio.timeout(_SOON_S):
        while not k.live_watches:
            await asyncio.sleep(0)
        assert k.cut_watches(how) == 1
        event, item = await coming
    assert event == {"end": "END", "expired": "ERROR"}[how]
    assert item is None or item["code"] == 410
    await events.aclose()


async def test_watches_are_reset(k, ray):
    events = ray.watch(resource_version=await version_now(ray))
    coming = asyncio.ensure_future(anext(events))
    async with asyncio.timeout(_SOON_S):
        while not k.live_watches:
            await asyncio.sleep(0)
        k.cut_watches("reset")
        with pytest.raises(aiohttp.ClientError):
            await coming


async def test_a_half_open_watch_is_silent_past_its_deadline(k, ray):
    since = await version_now(ray)
    events = ray.watch(resource_version=since, timeout_seconds=1, allow_watch_bookmarks=True)
    coming = asyncio.ensure_future(anext(events))
    async with asyncio.timeout(_SOON_S):
        while not k.live_watches:
            await asyncio.sleep(0)
        k.cut_watches("hang")
        await labelled(ray, "a")
        while (await ray.list(resource_version=since))["metadata"]["resourceVersion"] == since:
            await asyncio.sleep(0)
    done, _ = await asyncio.wait([coming], timeout=0.05)
    assert not done
    coming.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await coming


async def test_a_server_that_is_told_to_end_lets_watches_end_first(k, ray):
    since = await version_now(ray)
    events = ray.watch(resource_version=since)
    coming = asyncio.ensure_future(next_or_end(events))
    async with asyncio.timeout(_SOON_S):
        while not k.live_watches:
            await asyncio.sleep(0)
        await k.drain()
        assert (await coming)[0] == "END"
    with pytest.raises(aiohttp.ClientConnectorError):
        await ray.list()
    await k.start()
    again = [item["code"] async for _, item in ray.watch(resource_version=since)]
    assert again == [410]  # as after any restart


async def test_watches_are_counted(k, ray):
    events = ray.watch()
    coming = asyncio.ensure_future(anext(events))
    await labelled(ray, "a")
    await coming
    assert k.live_watches == 1
    assert k.count("watch", "rayclusters", token=k.token) == 1
    await events.aclose()
    async with asyncio.timeout(_SOON_S):
        while k.live_watches:
            await asyncio.sleep(0)
