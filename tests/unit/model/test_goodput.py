"""Where the seconds go: they add up, whatever clocks say, and what is done again is known once the next try begins."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.goodput import Goodput, Pace

SECONDS = st.floats(-50, 500)
STEPS = st.integers(0, 300)
PARTS = ("useful_s", "init_s", "compile_s", "saving_s", "redone_s", "idle_s")


@st.composite
def tries(draw: st.DrawFn) -> tuple[Pace, float, float, float, int]:
    """What a try told, how long its slices were held, their share, what lay spare, and where the next one begins."""
    began = draw(STEPS)
    pace = Pace(
        began=began,
        first=began + draw(st.integers(0, 3)),
        reached=draw(STEPS),
        begun_at=draw(st.one_of(st.just(0.0), st.floats(900, 1600))),
        first_s=draw(SECONDS),
        since_s=draw(SECONDS),
        blocked_s=draw(SECONDS),
    )
    return pace, draw(st.floats(0, 1000)), draw(st.integers(1, 4)) / 4, draw(st.floats(0, 100)), draw(STEPS)


@given(st.lists(tries(), max_size=5), st.lists(st.floats(0, 100), max_size=3))
def test_the_parts_add_up_to_what_was_held_and_none_is_negative(runs, waits) -> None:
    account, held = Goodput(), 0.0
    for seconds in waits:
        account = account.waited(seconds)
    for pace, seconds, weight, spare, goes_on in runs:
        account = account.held(pace, 1000.0, 1000.0 + seconds, weight).idled(spare).going_on(goes_on)
        held += weight * seconds + spare
    parts = [getattr(account, name) for name in PARTS]
    assert sum(parts) == pytest.approx(held, abs=1e-6)
    assert account.held_s == pytest.approx(held, abs=1e-6)
    assert account.waiting_s == pytest.approx(sum(waits))
    assert min(parts) >= -1e-6
    assert -1e-9 <= account.share <= account.ceiling + 1e-9 <= 1 + 2e-9
    result = account.to_result()
    assert sum(result[name] for name in PARTS) == pytest.approx(held, abs=0.05 * len(PARTS) + 1e-6)
    assert Goodput.from_dict(json.loads(json.dumps(account.to_dict()))) == account


PACE = Pace(began=100, first=101, reached=151, begun_at=1010.0, first_s=7.0, since_s=55.0, blocked_s=5.0)


def test_a_try_is_divided_by_what_its_loop_told() -> None:
    account = Goodput().waited(4.0).held(PACE, 1000.0, 1080.0)
    # 50 steps in 50 s, so that 1 s of the first step's 7 was a step.
    assert (account.init_s, account.compile_s, account.useful_s) == (10.0, 6.0, 51.0)
    assert (account.saving_s, account.idle_s, account.waiting_s) == (5.0, 8.0, 4.0)
    assert account.share == pytest.approx(51 / 80)
    assert account.ceiling == pytest.approx(51 / 67)
    assert account.describe() == "64 % useful (init 12 %, compile 8 %, saving 6 %, idle 10 %)"


def test_a_second_on_fewer_slices_is_that_share_of_a_second() -> None:
    whole, third = Goodput().held(PACE, 1000.0, 1080.0), Goodput().held(PACE, 1000.0, 1080.0, 1 / 3)
    for name in (*PARTS, "held_s", "open_s"):
        assert getattr(third, name) == pytest.approx(getattr(whole, name) / 3)
    assert (third.reached, third.describe()) == (151, whole.describe())
    both = third.going_on(151).held(replace(PACE, began=151, first=152, reached=202), 2000.0, 2080.0)
    assert both.held_s == pytest.approx(80 * 4 / 3)
    lost = both.going_on(151)
    assert (lost.useful_s, lost.redone_s) == (pytest.approx(51 / 3), pytest.approx(51.0)), "at the share of its own try"


@pytest.mark.parametrize(
    ("goes_on", "redone"),
    [(151, 0.0), (120, 51.0 * 31 / 51), (100, 51.0), (50, 51.0), (400, 0.0)],
)
def test_what_came_after_the_step_that_is_gone_back_to_is_done_again(goes_on: int, redone: float) -> None:
    lost = Goodput().held(PACE, 1000.0, 1080.0).going_on(goes_on)
    assert lost.redone_s == pytest.approx(redone)
    assert lost.useful_s == pytest.approx(51.0 - redone)
    assert lost.going_on(0) == Goodput.from_dict({**lost.to_dict(), "began": 0, "reached": 0}), "it is lost only once"


@pytest.mark.parametrize(
    ("pace", "part"),
    [
        (Pace(), "init_s"),
        (Pace(began=5, begun_at=1000.0), "compile_s"),
        (Pace(began=5, first=6, reached=6, begun_at=1000.0, first_s=80.0), "compile_s"),
    ],
)
def test_a_try_that_ends_early_ends_in_the_part_that_it_had_come_to(pace: Pace, part: str) -> None:
    account = Goodput().held(pace, 1000.0, 1080.0)
    assert getattr(account, part) == account.held_s == 80.0
    assert account.going_on(0).redone_s == 0.0


def test_nothing_held_has_no_share() -> None:
    assert (Goodput().share, Goodput().ceiling, Goodput().describe()) == (0.0, 0.0, "0 % useful")


def test_what_is_no_account_is_refused_and_a_newer_one_is_read() -> None:
    assert Goodput.from_dict({"useful_s": 3, "of_tomorrow": 1}) == Goodput(useful_s=3.0)
    with pytest.raises(RequestError, match="useful_s"):
        Goodput.from_dict({"useful_s": "much"})
