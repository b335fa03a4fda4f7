"""Waiting for whole idle slices, with a clock that moves only when the wait sleeps."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import asdict, replace

import pytest
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.serde import deserialize, serialize

from airflow_raytpu.model.errors import BackendUnreachable, LostError, NoSliceError
from airflow_raytpu.model.observation import ClusterState
from airflow_raytpu.model.request import Kind
from airflow_raytpu.model.verdict import Phase
from airflow_raytpu.triggers.capacity import CapacityTrigger, Lookout, Wish, picture
from tests.doubles.scripted import Clock, Lines, ScriptedBackend, ready, tpu_slice
from tests.unit.triggers.test_watch import NOW, request, see

WISH = Wish(slice="v6e:4x4", count=1, cluster="shared", known=False, begun_at=NOW, timeout_s=600.0)
IDLE, BUSY, BROKEN = (tpu_slice(condition) for condition in ("idle", "busy", "broken"))
GRANTED = {"cluster": "shared", "slices": ["shared-0"]}


def lookout(backend: ScriptedBackend, wish: Wish = WISH, poll_s: float = 15.0) -> tuple[Lookout, Lines, Clock]:
    clock = Clock(NOW)
    lines = Lines(clock)
    return Lookout(backend, wish, log=lines, poll_s=poll_s, now=clock, sleep=clock.sleep), lines, clock


async def test_it_ends_with_the_first_picture_that_has_enough():
    backend = ScriptedBackend(pictures=[[], [BUSY, BROKEN], [IDLE], [BUSY]])
    waiting, _, clock = lookout(backend)
    assert await waiting.run() == GRANTED
    assert backend.calls == [("slices", "shared")] * 3
    assert clock() - NOW == 30


@pytest.mark.parametrize(
    ("wish", "slices", "granted"),
    [
        ({}, [IDLE], GRANTED),
        ({}, [BUSY], None),
        ({}, [BROKEN], None),
        ({}, [tpu_slice("starting")], None),
        ({}, [tpu_slice(shape="v6e:2x2")], None),
        ({"count": 2}, [IDLE, replace(IDLE, name="b")], {"cluster": "shared", "slices": ["shared-0", "b"]}),
        ({"count": 2}, [IDLE, BUSY], None),
        ({"slice": "v6e:4x4*2"}, [IDLE], None),
        ({"slice": "v6e:4x4*2"}, [IDLE, replace(IDLE, name="b")], {"cluster": "shared", "slices": ["shared-0", "b"]}),
        ({"cluster": None, "count": 2}, [IDLE, replace(IDLE, cluster="other")], None),
        ({"cluster": None}, [BUSY, replace(IDLE, cluster="other")], {"cluster": "other", "slices": ["shared-0"]}),
        (
            {"slice": "v6e:2x4@ct6e-standard-8t"},
            [tpu_slice(shape="v6e:2x4@ct6e-standard-4t")],
            None,
        ),
    ],
)
def test_a_wish_is_granted_by_whole_idle_slices_of_one_cluster(wish, slices, granted):
    assert replace(WISH, **wish).granted_by(slices) == granted


async def test_its_time_ends_with_the_picture():
    waiting, _, clock = lookout(ScriptedBackend(pictures=[[BUSY, replace(BROKEN, since=NOW - 60)]]))
    with pytest.raises(NoSliceError) as raised:
        await waiting.run()
    assert raised.value.cause == (
        "Not 1 whole idle slice v6e:4x4 on cluster shared within 10 min (timeout): "
        "2 present, 1 busy (digits/train), 1 broken (host 2 of 4 missing, 11 min)."
    )
    assert clock() - NOW == 600


async def test_a_wait_that_goes_on_elsewhere_ends_at_the_same_time():
    waiting, _, clock = lookout(ScriptedBackend(), replace(WISH, begun_at=NOW - 590))
    with pytest.raises(NoSliceError, match="within 10 min"):
        await waiting.run()
    assert clock() - NOW == 10


@pytest.mark.parametrize("poll_s", [1.0, 15.0, 40.0])
async def test_the_log_is_told_every_change_and_never_silent_for_a_minute(poll_s):
    pictures = [[BUSY]] * 30 + [[BROKEN]] * 30 + [[IDLE]]
    waiting, lines, clock = lookout(ScriptedBackend(pictures=pictures), replace(WISH, timeout_s=1e6), poll_s)
    await waiting.run()
    times = [NOW, *(at for at, _, _ in lines.kept), clock()]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 60
    texts = lines.texts("info")
    assert "waiting for 1 whole idle slice v6e:4x4 on cluster shared: 1 present, 1 busy (digits/train)" in texts[0]
    assert any("1 broken" in text for text in texts)
    if poll_s == 1.0:
        assert len(texts) == 2


async def test_trouble_on_the_way_is_waited_out_and_told():
    trouble = BackendUnreachable("GET http://x gave no good answer")
    waiting, lines, _ = lookout(ScriptedBackend(pictures=[trouble, [IDLE]]))
    assert await waiting.run() == GRANTED
    assert "no answer (GET http://x gave no good answer)" in lines.texts("info")[0]


async def test_a_cluster_that_was_never_seen_may_yet_come():
    lost = LostError("There is no cluster shared.")
    waiting, lines, _ = lookout(ScriptedBackend(pictures=[lost, lost, lost, [IDLE]]))
    assert await waiting.run() == GRANTED
    assert "There is no cluster shared" in lines.texts("info")[0]


@pytest.mark.parametrize(
    ("known", "pictures"),
    [(False, [[BUSY], "gone", "gone"]), (True, ["gone", "gone"]), (True, ["gone", [BUSY], "gone", "gone"])],
)
async def test_a_cluster_that_was_there_and_is_gone_twice_is_lost(known, pictures):
    script = [LostError("There is no cluster shared.") if each == "gone" else each for each in pictures]
    backend = ScriptedBackend(pictures=[*script, [IDLE]])
    waiting, _, _ = lookout(backend, replace(WISH, known=known))
    with pytest.raises(LostError):
        await waiting.run()
    assert len(backend.calls) == len(pictures)


def test_what_is_there_of_another_shape_is_said_where_nothing_else_is():
    others = [tpu_slice(shape="v6e:2x2"), tpu_slice(shape="v6e:2x2"), tpu_slice(shape="v6e:2x4@ct6e-standard-8t")]
    assert picture(others, "v6e:4x4") == "none present, only 2 of v6e:2x2, 1 of v6e:2x4@ct6e-standard-8t"
    assert picture([], "v6e:4x4") == "none present"


def test_a_trigger_survives_serialisation_as_plain_json():
    path, arguments = CapacityTrigger(asdict(WISH), "conn", 15.0, stated=False).serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    again = import_string(path)(**deserialize(serialize(arguments)))
    assert again.serialize() == (path, arguments)
    assert Wish(**again.wish) == WISH


@pytest.mark.parametrize(
    ("pictures", "timeout_s", "event"),
    [
        ([[IDLE]], 60.0, {"granted": GRANTED}),
        ([[BUSY]], 0.0, {"code": "RT203"}),
        ([LostError("gone", "run it again")], 60.0, {"code": "RT204", "cause": "gone", "lever": "run it again"}),
    ],
)
async def test_a_trigger_fires_once_what_it_found(pictures, timeout_s, event, place_with):
    backend = ScriptedBackend(pictures=pictures)
    place_with(backend)
    wish = replace(WISH, known=True, begun_at=time.time(), timeout_s=timeout_s)
    trigger = CapacityTrigger(asdict(wish), "raytpu_default", 0.0)
    (fired,) = [each async for each in trigger.run()]
    payload = json.loads(json.dumps(fired.payload))
    assert event.items() <= payload.items()
    assert backend.closed == 1


async def test_a_connection_that_vanished_is_not_taken_for_simulated_slices(place_with):
    place_with(ScriptedBackend(pictures=[[IDLE]]), stated=False)
    (fired,) = [each async for each in CapacityTrigger(asdict(WISH), "prod", 0.0, stated=True).run()]
    assert fired.payload["code"] == "RT100"
    assert "prod" in fired.payload["cause"]


def asking(count: int, **limits: float):
    return replace(
        request(Kind.CLUSTER, cluster=None, **limits), arguments={"min_idle_slices": count}, slice="v6e:4x4*2"
    )


async def test_a_cluster_is_ready_only_when_its_idle_slices_are_proven():
    backend = ScriptedBackend(
        [ready()], pictures=[[BUSY, BROKEN], BackendUnreachable("503"), [IDLE, BUSY], [IDLE, IDLE]]
    )
    verdict, lines, _ = await see(backend, asking(2), poll_s=10.0)
    assert verdict.phase is Phase.SUCCEEDED
    assert len(backend.verbs("slices")) == 4
    assert lines.texts("info") == [
        "0 of 2 whole idle slices v6e:4x4: 2 present, 1 busy (digits/train), 1 broken (host 2 of 4 missing)",
        "no answer from the backend (503)",
        "1 of 2 whole idle slices v6e:4x4: 2 present, 1 idle, 1 busy (digits/train)",
    ]


@pytest.mark.parametrize(("there", "stops"), [([BROKEN, IDLE], ["stop"]), ([BUSY, IDLE], [])])
async def test_a_cluster_that_never_has_them_fails_with_the_picture_and_is_left_to_others(there, stops):
    backend = ScriptedBackend([ready()], pictures=[there])
    verdict, _, clock = await see(backend, asking(2, slice_wait_s=100.0))
    assert (verdict.phase, verdict.code) == (Phase.FAILED, "RT203")
    assert "1 of 2 whole idle slices v6e:4x4: 2 present, 1 idle, 1 b" in verdict.message
    assert "slice_wait" in verdict.message
    assert clock() - NOW == pytest.approx(100, abs=5)
    assert backend.verbs("stop") == stops


async def test_who_asks_for_no_idle_slices_is_not_kept():
    backend = ScriptedBackend([ready()], pictures=[[BUSY]])
    verdict, _, _ = await see(backend, request(Kind.CLUSTER, cluster=None))
    assert verdict.phase is Phase.SUCCEEDED
    assert backend.verbs("slices") == []


async def test_a_cluster_that_fails_meanwhile_is_not_asked():
    failed = replace(ready(), cluster=ClusterState.FAILED)
    backend = ScriptedBackend([failed], pictures=[[BUSY]])
    verdict, _, _ = await see(backend, asking(1))
    assert verdict.code == "RT208"
    assert backend.verbs("slices") == []
