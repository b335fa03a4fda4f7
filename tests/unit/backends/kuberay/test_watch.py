"""The shared watch, over real HTTP on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from airflow_raytpu.backends.kuberay import connection, watch
from airflow_raytpu.backends.kuberay.api import EVENTS, PODS, RAYJOBS, KubeApi, Pace, Resource
from airflow_raytpu.backends.kuberay.watch import INVOLVED, Rhythm, Store, shared
from airflow_raytpu.model.errors import BackendUnreachable, ForbiddenError, NotInstalledError
from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.doubles.virtual_time import VirtualTime

_QUICK = Pace(once=1.0, whole=0.2, first_pause=0.001, longest_pause=0.01)
_RHYTHM = Rhythm(first_pause=0.001, longest_pause=0.01, lasting_pause=0.01)


def job(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **more}, "spec": {}}


def names(store: Store) -> list[str]:
    return sorted(each["metadata"]["name"] for each in store.items())


async def within(work: Any, seconds: float = 10.0) -> Any:
    return await asyncio.wait_for(work, seconds)


@pytest.fixture
async def kubernetes() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as server:
        yield server


@pytest.fixture
async def api(kubernetes: FakeKubernetes) -> AsyncIterator[KubeApi]:
    client = KubeApi(TestAccess(kubernetes.url, kubernetes.token), "default", _QUICK)
    yield client
    await client.close()
    assert not watch._watches
    assert not connection._lines


@pytest.fixture
async def store(api: KubeApi) -> AsyncIterator[Store]:
    found = shared(api, RAYJOBS, rhythm=_RHYTHM)
    yield found
    await found.close()


async def test_what_is_there_and_what_comes_is_shown(kubernetes: FakeKubernetes, store: Store) -> None:
    kubernetes.put("rayjobs", job("a"))
    await within(store.synced())
    assert names(store) == ["a"]
    mark = store.mark(("", "b"))
    kubernetes.put("rayjobs", job("b"))
    await within(store.changed(mark))
    mark = store.mark(("", "a"))
    kubernetes.status("rayjobs", "a", {"jobStatus": "RUNNING"})
    await within(store.changed(mark))
    found = store.get("a")
    assert found is not None
    assert found["status"] == {"jobStatus": "RUNNING"}
    assert "managedFields" not in found["metadata"]
    mark = store.mark(("", "a"))
    kubernetes.remove("rayjobs", "a")
    await within(store.changed(mark))
    assert names(store) == ["b"]


async def test_a_thousand_waiters_cost_one_list_and_one_watch(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    stores = [shared(api, RAYJOBS, rhythm=_RHYTHM) for _ in range(1000)]
    await within(asyncio.gather(*(store.synced() for store in stores)))
    waiting = [asyncio.create_task(store.changed(store.mark(("", f"j{n}")))) for n, store in enumerate(stores)]
    kubernetes.put("rayjobs", job("j7"))
    await within(waiting[7])
    assert sum(each.done() for each in waiting) == 1
    assert (kubernetes.count("list", "rayjobs"), kubernetes.count("watch", "rayjobs")) == (1, 1)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*(store.close() for store in stores))
    await within(_until(lambda: kubernetes.live_watches == 0))


async def test_groups_wake_those_who_wait_for_them(kubernetes: FakeKubernetes, store: Store) -> None:
    await within(store.synced())
    one, two = store.mark(("dag", "one")), store.mark(("dag", "two"))
    waits = asyncio.create_task(store.changed(two))
    kubernetes.put("rayjobs", job("a", labels={"dag": "one"}))
    await within(store.changed(one))
    assert not waits.done()
    assert [each["metadata"]["name"] for each in store.of("dag", "one")] == ["a"]
    kubernetes.edit("rayjobs", "a", {"metadata": {"labels": {"dag": "two"}}})
    await within(waits)
    assert (store.of("dag", "one"), len(store.of("dag", "two"))) == ([], 1)


async def test_events_are_found_by_what_they_are_about(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    kubernetes.put("events", event("e1", "RayJob", "a"))
    kubernetes.put("events", event("e2", "Node", "n"))
    store = shared(api, EVENTS, rhythm=_RHYTHM)
    await within(store.synced())
    assert [each["metadata"]["name"] for each in store.of(INVOLVED, "a")] == ["e1"]
    assert names(store) == ["e1"]
    await store.close()


async def test_a_user_that_leaves_does_not_end_it_for_others(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    one, two = shared(api, RAYJOBS, rhythm=_RHYTHM), shared(api, RAYJOBS, rhythm=_RHYTHM)
    await within(two.synced())
    await one.close()
    await one.close()
    mark = two.mark(("", "a"))
    kubernetes.put("rayjobs", job("a"))
    await within(two.changed(mark))
    await two.close()


async def test_other_labels_and_kinds_are_other_watches(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    kubernetes.put("rayjobs", job("a", labels={"x": "1"}))
    kubernetes.put("rayjobs", job("b"))
    stores = [shared(api, RAYJOBS, rhythm=_RHYTHM), shared(api, RAYJOBS, "x=1", _RHYTHM), shared(api, PODS)]
    await within(asyncio.gather(*(store.synced() for store in stores)))
    assert [names(store) for store in stores] == [["a", "b"], ["a"], []]
    for store in stores:
        await store.close()


async def test_a_missing_right_is_told_to_all_and_healed_when_given(kubernetes: FakeKubernetes) -> None:
    api = KubeApi(TestAccess(kubernetes.url, kubernetes.account("flow", [])), "default", _QUICK)
    stores = [shared(api, RAYJOBS, rhythm=_RHYTHM) for _ in range(3)]
    for store in stores:
        with pytest.raises(ForbiddenError, match="may not list"):
            await within(store.synced())
    rules = [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["list", "watch"]}]
    kubernetes.edit("roles", "flow", {"rules": rules})
    await within(_until(lambda: stores[0].fault is None))
    await within(stores[1].synced())
    for store in stores:
        await store.close()
    await api.close()


async def test_a_missing_right_is_told_at_once(kubernetes: FakeKubernetes) -> None:
    time, asleep = VirtualTime(), asyncio.Event()

    async def sleep(_: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    api = KubeApi(TestAccess(kubernetes.url, kubernetes.account("flow", [])), "default", _QUICK)
    store = shared(api, RAYJOBS, rhythm=Rhythm(clock=time.clock, sleep=sleep))
    await within(asleep.wait())
    assert isinstance(store.fault, ForbiddenError)
    await store.close()
    await api.close()


async def test_a_kind_that_is_not_there_is_told_to_those_who_wait(kubernetes: FakeKubernetes, store: Store) -> None:
    await within(store.synced())
    mark = store.mark(("", "a"))
    kubernetes.uninstall("rayjobs")
    kubernetes.cut_watches("end")
    await within(store.changed(mark))
    assert isinstance(store.fault, NotInstalledError)


async def test_what_cannot_be_listed_in_time_says_why(kubernetes: FakeKubernetes, store: Store) -> None:
    kubernetes.fail("list", "rayjobs", 503, times=None)
    assert store.age == float("inf")
    with pytest.raises(BackendUnreachable, match=r"within 0\.5 s: .*HTTP 503"):
        await store.synced(0.5)


async def test_what_is_not_shown_is_asked_for(kubernetes: FakeKubernetes, store: Store) -> None:
    await within(store.synced())
    kubernetes.put("rayjobs", job("a"))
    assert (await store.find("a") or {})["metadata"]["name"] == "a"
    assert await store.find("b") is None
    assert kubernetes.count("get", "rayjobs") >= 1


async def test_gone_is_what_the_server_says_is_gone(kubernetes: FakeKubernetes, store: Store) -> None:
    uid = kubernetes.put("rayjobs", job("a", finalizers=["example.com/hold"]))["metadata"]["uid"]
    await within(store.synced())
    assert await store.gone("a", "another", 5)
    kubernetes.remove("rayjobs", "a")
    assert not await store.gone("a", uid, 0.1)
    kubernetes.edit("rayjobs", "a", {"metadata": {"finalizers": []}})
    assert await store.gone("a", uid, 5)
    kubernetes.put("rayjobs", job("a"))
    assert await store.gone("a", uid, 5)


async def test_gone_is_not_what_has_not_been_shown_yet(kubernetes: FakeKubernetes, store: Store) -> None:
    await within(_streaming(kubernetes, store))
    kubernetes.cut_watches("hang")
    uid = kubernetes.put("rayjobs", job("a"))["metadata"]["uid"]
    assert store.get("a") is None
    assert not await store.gone("a", uid, 0.2)


async def test_it_goes_on_from_the_last_event_and_the_last_bookmark(
    kubernetes: FakeKubernetes, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubernetes.bookmark_every_s = 0.05
    await within(_streaming(kubernetes, store))
    api, asked = store._watch.api, []
    watching = api.watching

    def noted(resource: Resource, query: dict[str, str], silence_s: float) -> Any:
        asked.append(query["resourceVersion"])
        return watching(resource, query, silence_s)

    monkeypatch.setattr(api, "watching", noted)
    version = kubernetes.put("rayjobs", job("a"))["metadata"]["resourceVersion"]
    await within(_until(lambda: store.get("a") is not None))
    kubernetes.cut_watches("end")
    await within(_until(lambda: asked == [version]))
    kubernetes.put("namespaces", {"metadata": {"name": "other"}})
    latest = str(kubernetes.store.version)
    await within(_until(lambda: store._watch._version == latest))
    kubernetes.cut_watches("end")
    await within(_until(lambda: asked == [version, latest]))
    assert kubernetes.count("list", "rayjobs") == 1


async def test_an_expired_watch_is_listed_anew_at_once(kubernetes: FakeKubernetes, api: KubeApi) -> None:
    time = VirtualTime()
    store = shared(api, RAYJOBS, rhythm=Rhythm(clock=time.clock, sleep=time.sleep))
    await within(_streaming(kubernetes, store))
    kubernetes.cut_watches("expired")
    await within(_until(lambda: kubernetes.count("list", "rayjobs") == 2))
    assert time.slept == []
    await store.close()


async def test_one_401_of_a_watch_is_nobodys_fault(kubernetes: FakeKubernetes, store: Store) -> None:
    await within(_streaming(kubernetes, store))
    waits = asyncio.create_task(store.changed(store.mark(("", "a"))))
    kubernetes.fail("watch", "rayjobs", 401)
    kubernetes.cut_watches("end")
    await within(_until(lambda: kubernetes.count("list", "rayjobs") == 2 and kubernetes.live_watches == 1))
    assert (waits.done(), store.fault) == (False, None)
    waits.cancel()


async def test_who_may_list_but_not_watch_is_told(kubernetes: FakeKubernetes) -> None:
    rules = [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["list"]}]
    api = KubeApi(TestAccess(kubernetes.url, kubernetes.account("flow", rules)), "default", _QUICK)
    store = shared(api, RAYJOBS, rhythm=_RHYTHM)
    await within(store.synced())
    await within(store.changed(store.mark(("", "a"))))
    assert isinstance(store.fault, ForbiddenError)
    assert "may not watch rayjobs.ray.io" in store.fault.cause
    await store.close()
    await api.close()


async def test_a_bug_in_the_watch_is_told_and_does_not_end_it(
    kubernetes: FakeKubernetes, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await within(_streaming(kubernetes, store))
    put, faults = store._watch.contents.put, iter([RuntimeError("bug")])

    def broken(each: Any) -> None:
        if fault := next(faults, None):
            raise fault
        put(each)

    monkeypatch.setattr(store._watch.contents, "put", broken)
    mark = store.mark(("", "a"))
    kubernetes.put("rayjobs", job("a"))
    await within(store.changed(mark))
    assert names(store) == ["a"]
    assert "RuntimeError: bug" in str(store._watch.trouble)


async def _streaming(kubernetes: FakeKubernetes, store: Store) -> None:
    await store.synced()
    await _until(lambda: kubernetes.live_watches == 1)


async def _until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def event(name: str, kind: str, involved: str) -> dict[str, Any]:
    about = {"kind": kind, "name": involved, "namespace": "default"}
    return {"metadata": {"name": name}, "involvedObject": about, "reason": "R", "message": "m", "type": "Normal"}
