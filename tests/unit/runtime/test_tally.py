"""What tries cost: every second once, and over attempts that were lost under it as well."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.model.errors import DivergedError, LostError, RequestError
from airflow_raytpu.model.goodput import Goodput, Pace
from airflow_raytpu.model.observation import Progress
from airflow_raytpu.model.spent import Spent, after_loss
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.tally import StepTally, Tally


def pace(began: int, reached: int, begun_at: float) -> Pace:
    """Of a loop with 1 s for each step, and 4 s more for its first."""
    steps = reached - began
    return Pace(
        began=began,
        first=began + 1,
        reached=reached,
        begun_at=begun_at,
        first_s=5.0,
        since_s=steps - 1.0,
        blocked_s=0.0,
    )


def account(tally: StepTally) -> dict[str, float]:
    return {name: value for name, value in tally.goodput.to_result().items() if name.endswith("_s") and value}


def test_every_second_is_counted_once() -> None:
    tally = StepTally(at=1000.0)
    tally.begin(0)
    tally.wait(1010.0)
    tally.end(pace(0, 30, 1013.0), 1050.0)
    tally.begin(20)
    tally.wait(1070.0)
    tally.end(pace(20, 40, 1072.0), 1097.0)
    assert account(tally) == {
        "waiting_s": 30.0,
        "init_s": 5.0,
        "compile_s": 8.0,
        "useful_s": 40.0,
        "redone_s": 10.0,
        "idle_s": 4.0,
    }
    assert tally.spent.held_s == 67.0
    costs = tally.costs()
    assert (costs["held_s"], costs["lost_s"], tally.began_from) == (67.0, 10.0, [0, 20])
    assert sum(account(tally).values()) == 1097.0 - 1000.0


def test_what_a_driver_that_was_killed_had_spent_goes_on_in_the_next_attempt() -> None:
    killed = StepTally(at=1000.0)
    killed.begin(0)
    killed.wait(1010.0)
    # The last that it told, as it stands in its outbox, at step 30.
    told = Progress(
        request="one", phase="training", at=1045.0, done=30, slice_at=1010.0,
        spent=killed.so_far(pace(0, 30, 1013.0), 1047.0).to_dict(),
    )  # fmt: skip
    spent = after_loss({}, told, "the job is gone")
    assert (spent.held_s, spent.evictions) == (37.0, 1)

    second = StepTally(Spent.of({"spent": spent.to_dict()}), at=2000.0)
    second.begin(20)
    second.wait(2001.0)
    second.end(pace(20, 40, 2002.0), 2026.0)

    assert account(second) == {
        "waiting_s": 11.0,
        "init_s": 4.0,
        "compile_s": 8.0,
        "useful_s": 40.0,
        "redone_s": 10.0,
    }
    assert second.goodput.held_s == pytest.approx(second.spent.held_s) == 62.0
    assert second.costs()["lost_s"] == 10.0


def lost(before: dict[str, Any], spent: Spent) -> dict[str, Any]:
    """The arguments of the attempt after one that held a slice and last told *spent*, as they come out of storage."""
    told = Progress(request="one", phase="training", at=99.0, slice_at=9.0, spent=spent.to_dict())
    return json.loads(json.dumps({"spent": after_loss(before, told, "gone").to_dict()}))


@st.composite
def elastic_tries(draw: st.DrawFn) -> tuple[int, float, float, float, bool]:
    """Slices of 3, seconds without any before, seconds with them, of spare ones, and whether its driver is lost."""
    slices, held_s = draw(st.integers(1, 3)), draw(st.floats(0, 500))
    spare_s = draw(st.floats(0, 1)) * held_s * (3 - slices) / 3
    return slices, draw(st.floats(0, 50)), held_s, spare_s, draw(st.booleans())


@given(st.lists(elastic_tries(), max_size=6))
def test_the_parts_add_up_to_the_slices_that_were_held_whichever_attempt_held_them(tries) -> None:
    arguments, tally = {}, StepTally(at=1000.0)
    waited = held = 0.0
    for slices, wait_s, held_s, spare_s, driver_lost in tries:
        tally.begin(5)
        tally.take("abc"[:slices], 3)
        tally.wait(tally.at + wait_s)
        tally.spare_s = spare_s
        now, word = tally.at + held_s, pace(5, 30, tally.at + 3.0)
        if driver_lost:
            arguments = lost(arguments, tally.so_far(word, now))
            tally = StepTally(Spent.of(arguments), at=5000.0)
        else:
            tally.end(word, now)
        waited, held = waited + wait_s, held + slices / 3 * held_s + spare_s
    parts = {name: seconds for name, seconds in tally.goodput.to_result().items() if name.endswith("_s")}
    assert parts.pop("waiting_s") == pytest.approx(waited, abs=0.06)
    assert sum(parts.values()) == pytest.approx(held, abs=0.4)
    assert tally.goodput.held_s == pytest.approx(held, abs=1e-6)
    assert tally.spent.held_s == pytest.approx(held, abs=1e-6)
    assert tally.spent.evictions == sum(driver_lost for *_, driver_lost in tries)


def test_resizes_go_on_in_the_next_attempt() -> None:
    first = StepTally(at=1000.0)
    first.take(("a",), 2)
    first.resize(10, 1, "slice b lost")
    second = StepTally(Spent.of(lost({}, first.so_far(Pace(), 1040.0))), at=2000.0)
    assert (second.spent.slices, second.spent.held_s) == (("a",), 20.0)
    second.resize(20, 2, "slice b free")
    assert second.costs()["resizes"] == [
        {"at_step": 10, "slices": 1, "why": "slice b lost"},
        {"at_step": 20, "slices": 2, "why": "slice b free"},
    ]


def test_what_an_earlier_release_had_spent_is_read_and_what_is_no_list_is_refused() -> None:
    assert Spent.from_dict({"evictions": 1, "held_s": 3, "causes": ["x"]}) == Spent(
        evictions=1, held_s=3.0, causes=("x",)
    )
    with pytest.raises(RequestError, match=r"resizes\[0\]"):
        Spent.from_dict({"resizes": ["slice b lost"]})


def test_an_attempt_that_never_told_what_it_went_into_is_held_all_the_same() -> None:
    told = Progress(request="one", phase="setting up", at=1040.0, slice_at=1010.0)
    assert after_loss({}, told, "gone").held_s == 30.0
    assert Goodput.from_dict(after_loss({}, None, "gone").goodput) == Goodput()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AuthorError("loop raised", "frames", 1.0), (1, 0)),
        (DivergedError("The loss is nan at step 3.", "lower it"), (1, 0)),
        (LostError("the slice is gone", ""), (0, 1)),
    ],
)
def test_each_budget_pays_for_its_own_until_it_is_used_up(error, expected, make_request) -> None:
    tally, outbox = Tally(), Outbox(make_request(), write=lambda *_: None)
    allowed = {"failures": 1, "evictions": 1}

    tally.spend(error, allowed, outbox)
    with pytest.raises(type(error)) as caught:
        tally.spend(error, allowed, outbox)

    assert caught.value is error
    assert (tally.spent.failures, tally.spent.evictions, tally.tries) == (*expected, 1)
    assert str(error).splitlines()[0] in tally.spent.causes[0]
