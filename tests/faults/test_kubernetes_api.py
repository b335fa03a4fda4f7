"""Trouble on the way to the Kubernetes API: nothing is lost, nothing is done twice, nothing is wrongly absent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from airflow_raytpu.backends.kuberay import connection, watch
from airflow_raytpu.backends.kuberay.api import RAYJOBS, Exists, KubeApi, Pace
from airflow_raytpu.backends.kuberay.watch import Rhythm, Store, shared
from airflow_raytpu.model.errors import BackendUnreachable
from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.doubles.kubernetes.trouble import Fault
from tests.doubles.virtual_time import VirtualTime

FAULTS: list[Fault] = [429, 500, 502, 503, 504, 408, "timeout", "reset", "hang", "garbage", "drop", "cut"]
DONE_THOUGH_LOST = {"drop", "cut"}
_QUICK = Pace(once=1.0, whole=5.0, first_pause=0.001, longest_pause=0.02)
_RHYTHM = Rhythm(silence=0.3, first_pause=0.001, longest_pause=0.02, lasting_pause=0.02)
JOB = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "a"}, "spec": {}}


@pytest.fixture
async def kubernetes() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as server:
        yield server


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
async def api(kubernetes: FakeKubernetes, time: VirtualTime) -> AsyncIterator[KubeApi]:
    """Pauses take no time; only a server that hangs does."""
    pace = Pace(once=0.2, clock=time.clock, sleep=time.sleep)
    client = KubeApi(TestAccess(kubernetes.url, kubernetes.token), "default", pace)
    yield client
    await client.close()
    await nothing_is_left(kubernetes)


@pytest.fixture
async def store(kubernetes: FakeKubernetes) -> AsyncIterator[Store]:
    api = KubeApi(TestAccess(kubernetes.url, kubernetes.token), "default", _QUICK)
    found = shared(api, RAYJOBS, rhythm=_RHYTHM)
    await within(found.synced())
    await until(lambda: kubernetes.live_watches == 1)
    yield found
    await found.close()
    await api.close()
    await nothing_is_left(kubernetes)


async def nothing_is_left(kubernetes: FakeKubernetes) -> None:
    assert not watch._watches
    assert not connection._lines
    await until(lambda: kubernetes.live_watches == 0)
    server = kubernetes._runner and kubernetes._runner.server
    assert server
    await until(lambda: not server.connections)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("watch ")]


# Calls.


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_create_goes_through_once(kubernetes: FakeKubernetes, api: KubeApi, fault: Fault, times: int) -> None:
    kubernetes.fail("create", "rayjobs", fault, times)
    if fault in DONE_THOUGH_LOST:
        with pytest.raises(Exists):
            await api.create(RAYJOBS, JOB)
    else:
        assert (await api.create(RAYJOBS, JOB))["metadata"]["name"] == "a"
    assert len(kubernetes.items("rayjobs")) == 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_reads_and_other_writes_say_what_is_so(kubernetes: FakeKubernetes, api: KubeApi, fault: Fault) -> None:
    uid = kubernetes.put("rayjobs", JOB)["metadata"]["uid"]
    for verb in ("get", "list", "patch", "delete"):
        kubernetes.fail(verb, "rayjobs", fault, 2)
    assert (await api.get(RAYJOBS, "a") or {})["metadata"]["uid"] == uid
    assert [each["metadata"]["uid"] for each in (await api.list(RAYJOBS))[0]] == [uid]
    patched = await api.patch(RAYJOBS, "a", {"metadata": {"annotations": {"n": "1"}}})
    assert (patched or {})["metadata"]["annotations"] == {"n": "1"}
    await api.delete(RAYJOBS, "a", uid)
    assert kubernetes.items("rayjobs") == []


@pytest.mark.parametrize("fault", [429, 503, "reset", "garbage", "timeout"])
async def test_absence_is_never_made_up(kubernetes: FakeKubernetes, api: KubeApi, fault: Fault) -> None:
    kubernetes.put("rayjobs", JOB)
    kubernetes.fail("*", "rayjobs", fault, None)
    calls: list[Awaitable[Any]] = [api.get(RAYJOBS, "a"), api.list(RAYJOBS), api.patch(RAYJOBS, "a", {})]
    for call in calls:
        with pytest.raises(BackendUnreachable):
            await call


async def test_trouble_that_stays_ends_within_the_deadline_and_without_a_storm(
    kubernetes: FakeKubernetes, api: KubeApi, time: VirtualTime
) -> None:
    kubernetes.fail("get", "rayjobs", 503, None)
    began = time.now
    with pytest.raises(BackendUnreachable, match="HTTP 503"):
        await api.get(RAYJOBS, "a")
    assert 45 <= time.now - began <= 50
    assert kubernetes.count("get", "rayjobs") <= 30


async def test_the_pause_that_the_server_asks_for_is_kept(
    kubernetes: FakeKubernetes, api: KubeApi, time: VirtualTime
) -> None:
    kubernetes.fail("get", "rayjobs", 429, 2, retry_after=9)
    assert await api.get(RAYJOBS, "a") is None
    assert [round(pause, 6) for pause in time.slept] == [9, 9]


@pytest.mark.parametrize("verb", ["create", "get", "list", "patch", "delete"])
async def test_an_outage_of_20_s_is_outlasted(
    kubernetes: FakeKubernetes, api: KubeApi, time: VirtualTime, verb: str
) -> None:
    uid = "" if verb == "create" else kubernetes.put("rayjobs", JOB)["metadata"]["uid"]
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "create": lambda: api.create(RAYJOBS, JOB),
        "get": lambda: api.get(RAYJOBS, "a"),
        "list": lambda: api.list(RAYJOBS),
        "patch": lambda: api.patch(RAYJOBS, "a", {"metadata": {"annotations": {"n": "1"}}}),
        "delete": lambda: api.delete(RAYJOBS, "a", uid),
    }
    await kubernetes.stop()
    time.after(20, kubernetes.start)
    began = time.now
    await calls[verb]()
    assert 20 <= time.now - began <= 25
    assert len(kubernetes.items("rayjobs")) == (0 if verb == "delete" else 1)


# Watches.


async def test_a_waiter_outlives_every_end_of_a_watch(kubernetes: FakeKubernetes, store: Store) -> None:
    for name, cut in ENDS.items():
        kubernetes.put("rayjobs", job(f"{name}-stays"))
        kubernetes.put("rayjobs", job(f"{name}-goes"))
        await shows(store, kubernetes)
        marks = [store.mark(("", f"{name}-{what}")) for what in ("stays", "goes", "comes")]
        await until(lambda: kubernetes.live_watches == 1)
        await cut(kubernetes)
        kubernetes.status("rayjobs", f"{name}-stays", {"jobStatus": "SUCCEEDED"})
        kubernetes.remove("rayjobs", f"{name}-goes")
        kubernetes.put("rayjobs", job(f"{name}-comes"))
        for mark in marks:
            await within(store.changed(mark))
        await shows(store, kubernetes)
        assert store.fault is None
        kubernetes.heal()
    await until(lambda: kubernetes.live_watches == 1)


async def end(kubernetes: FakeKubernetes) -> None:
    kubernetes.cut_watches("end")


async def reset(kubernetes: FakeKubernetes) -> None:
    kubernetes.cut_watches("reset")


async def expired_within(kubernetes: FakeKubernetes) -> None:
    kubernetes.cut_watches("expired")


async def half_open(kubernetes: FakeKubernetes) -> None:
    kubernetes.cut_watches("hang")


async def forgotten(kubernetes: FakeKubernetes) -> None:
    """The place in the stream is gone before it can be taken up: the deletes in between are never told."""
    kubernetes.fail("watch", "rayjobs", 503, 1)
    kubernetes.cut_watches("reset")
    await until(lambda: kubernetes.live_watches == 0)
    kubernetes.compact()


async def killed(kubernetes: FakeKubernetes) -> None:
    async with kubernetes.outage():
        await asyncio.sleep(0.05)


async def drained(kubernetes: FakeKubernetes) -> None:
    await kubernetes.drain()
    await kubernetes.start()


def refused(status: Fault, times: int) -> Callable[[FakeKubernetes], Awaitable[None]]:
    async def cut(kubernetes: FakeKubernetes) -> None:
        kubernetes.fail("watch", "rayjobs", status, times)
        kubernetes.cut_watches("end")

    return cut


ENDS: dict[str, Callable[[FakeKubernetes], Awaitable[None]]] = {
    "end": end,
    "reset": reset,
    "expired": expired_within,
    "half-open": half_open,
    "forgotten": forgotten,
    "killed": killed,
    "drained": drained,
    **{f"refused-{status}": refused(status, 2) for status in (410, 429, 500, 503, "reset", "garbage", "cut", "drop")},
    "refused-401": refused(401, 1),
}


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_happens_it_ends_up_with_what_is_so(kubernetes: FakeKubernetes, store: Store, seed: int) -> None:
    chance = random.Random(seed)
    kubernetes.put("rayjobs", job("always"))
    await shows(store, kubernetes)
    missing = asyncio.create_task(_missing(store, "always"))
    cuts = [end, reset, expired_within, forgotten, killed, drained, refused(503, 1), refused(410, 1), refused("cut", 1)]
    for _ in range(60):
        name = f"j{chance.randrange(8)}"
        match chance.choice(["change", "change", "delete", "delete", "cut", "pause"]):
            case "change" if kubernetes.find("rayjobs", name) is None:
                kubernetes.put("rayjobs", job(name))
            case "change":
                kubernetes.status("rayjobs", name, {"at": chance.random()})
            case "delete" if kubernetes.find("rayjobs", name):
                kubernetes.remove("rayjobs", name)
            case "cut":
                await chance.choice(cuts)(kubernetes)
            case "pause":
                await asyncio.sleep(0.01)
    await shows(store, kubernetes)
    assert not missing.done()
    missing.cancel()


async def _missing(store: Store, name: str) -> None:
    """Ends at the first moment at which *name* is not shown."""
    while store.get(name):
        await asyncio.sleep(0)


async def test_an_outage_is_told_and_what_was_shown_stays_shown(kubernetes: FakeKubernetes) -> None:
    kubernetes.put("rayjobs", job("a"))
    time, pace = VirtualTime(), Pace(once=1.0, whole=0.1, first_pause=0.001, longest_pause=0.02)
    api = KubeApi(TestAccess(kubernetes.url, kubernetes.token), "default", pace)
    found = shared(api, RAYJOBS, rhythm=Rhythm(clock=time.clock, sleep=time.sleep))
    await within(found.synced())
    await until(lambda: kubernetes.live_watches == 1)
    waits = found.changed(found.mark(("", "a")))
    await kubernetes.stop()
    await within(waits)
    assert isinstance(found.fault, BackendUnreachable)
    assert found.get("a")
    assert found.age >= 60
    await kubernetes.start()
    await until(lambda: found.fault is None)
    assert found.age == 0
    await found.close()
    await api.close()


async def test_a_gone_server_is_asked_ever_more_slowly(kubernetes: FakeKubernetes) -> None:
    time = VirtualTime()
    api = KubeApi(TestAccess(kubernetes.url, kubernetes.token), "default", _QUICK)
    found = shared(api, RAYJOBS, rhythm=Rhythm(clock=time.clock, sleep=time.sleep))
    await within(found.synced())
    await until(lambda: kubernetes.live_watches == 1)
    kubernetes.fail("watch", "rayjobs", 503, 8)
    kubernetes.cut_watches("reset")
    await until(lambda: kubernetes.count("watch", "rayjobs", status=503) == 8 and kubernetes.live_watches == 1)
    assert kubernetes.count("list", "rayjobs") >= 2, "the place in the stream was still trusted"
    assert all(pause <= 10 for pause in time.slept)
    assert [pause >= 0.25 * 2 ** min(n, 4) for n, pause in enumerate(time.slept[:6])] == [True] * 6
    await found.close()
    await api.close()


async def test_a_lost_delete_is_noticed_by_the_next_full_list(kubernetes: FakeKubernetes) -> None:
    time = VirtualTime()
    api = KubeApi(TestAccess(kubernetes.url, kubernetes.token), "default", _QUICK)
    found = shared(api, RAYJOBS, rhythm=Rhythm(clock=time.clock, sleep=time.sleep))
    kubernetes.put("rayjobs", job("a"))
    await within(found.synced())
    await until(lambda: kubernetes.live_watches == 1)
    ghost = {"metadata": {"name": "ghost", "resourceVersion": "1000000", "uid": "g"}}
    found._watch.contents.put(ghost)
    mark = found.mark(("", "ghost"))
    time.now += 940
    kubernetes.cut_watches("end")
    await within(found.changed(mark))
    assert (found.get("ghost"), kubernetes.count("list", "rayjobs")) == (None, 2)
    await found.close()
    await api.close()


async def test_bookmarks_keep_a_quiet_watch_alive(kubernetes: FakeKubernetes) -> None:
    kubernetes.bookmark_every_s = 0.1
    time = VirtualTime()
    api = KubeApi(TestAccess(kubernetes.url, kubernetes.token), "default", _QUICK)
    found = shared(api, RAYJOBS, rhythm=Rhythm(silence=1.0, clock=time.clock, sleep=time.sleep))
    await within(found.synced())
    await until(lambda: kubernetes.live_watches == 1)
    for _ in range(15):
        time.now += 60
        assert found.age >= 60
        await until(lambda: found.age == 0)
    assert kubernetes.count("watch", "rayjobs") == 1
    await found.close()
    await api.close()


def job(name: str) -> dict[str, Any]:
    return {**JOB, "metadata": {"name": name}}


async def shows(store: Store, kubernetes: FakeKubernetes) -> None:
    """Until *store* shows just what there is."""

    def versions(items: list[dict[str, Any]]) -> dict[str, str]:
        return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in items}

    await until(lambda: versions(store.items()) == versions(kubernetes.items("rayjobs")))


async def until(holds: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not holds():
            await asyncio.sleep(0.005)

    await within(wait())


async def within(work: Any) -> Any:
    return await asyncio.wait_for(work, 15)
