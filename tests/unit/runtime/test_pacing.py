"""What rank 0 tells of where its time goes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_raytpu.model.goodput import Pace
from airflow_raytpu.model.policies import CheckpointPolicy
from airflow_raytpu.runtime import checkpoints
from airflow_raytpu.runtime.checkpoints import Session
from airflow_raytpu.runtime.pacing import Done, Stopwatch, of_reports


def test_a_loop_is_timed_from_its_state_to_its_last_step() -> None:
    now = [0.0]
    watch = Stopwatch(lambda: 500.0 + now[0], lambda: now[0])
    now[0] = 3.0
    watch.begin(20)
    now[0] = 9.0
    assert Pace(**watch.at(21, 0.0)) == Pace(began=20, first=21, reached=21, begun_at=503.0, first_s=6.0)
    now[0] = 19.0
    assert Pace(**watch.at(29, 2.0)) == Pace(
        began=20, first=21, reached=29, begun_at=503.0, first_s=6.0, since_s=10.0, blocked_s=2.0
    )


def test_a_loop_that_only_reports_is_timed_from_its_mesh() -> None:
    pace = of_reports(0, 503.0, {"done": 1, "at": 509.0}, {"done": 9, "at": 519.0})
    assert pace == Pace(first=1, reached=9, begun_at=503.0, first_s=6.0, since_s=10.0)


class Handed:
    """A number that the devices may not have yet; to read it too early would be to wait for it."""

    def __init__(self, value: float) -> None:
        self.value, self.there = value, False

    def is_ready(self) -> bool:
        return self.there

    def __float__(self) -> float:
        assert self.there, "waited for the devices"
        return self.value


class Deleted:
    def is_ready(self) -> bool:
        raise RuntimeError("Array has been deleted.")


def test_a_step_is_done_once_all_its_numbers_are_there() -> None:
    done, handed = Done(), [Handed(step) for step in range(4)]
    for step in (1, 2, 3):
        done.add(step, {"loss": handed[step], "rows": 8})
    assert done.newest[0] == 0
    handed[2].there = True
    done.add(4, {"loss": Deleted()})
    assert done.newest[0] == 0, "a step is done after those before it"
    handed[1].there = True
    done.add(5, {})
    assert done.newest == (2, {"loss": handed[2], "rows": 8})
    handed[3].there = True
    done.add(6, {})
    assert done.newest[0] == 6


@pytest.fixture
def told() -> list[dict[str, object]]:
    return []


@pytest.fixture
def session(tmp_path, told) -> Session:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.5
        return 500.0 + now[0]

    policy = CheckpointPolicy(every_steps=10**6)
    return Session(tmp_path.as_uri(), "one", policy, ("one",), None, 0, 0, told.append, clock=clock, ticks=clock)


def test_the_helper_tells_it_with_each_word_and_begins_with_the_state(session, told) -> None:
    made_at = session._watch._pace.begun_at
    with checkpoints.opened(session):
        checkpoints.restore_or_init(lambda: None)
        for step in range(1, 10):
            checkpoints.step(step, None, {"loss": 1.0})
    assert len(told) > 1
    first, last = (Pace(**news["pace"]) for news in (told[0], told[-1]))
    assert first.begun_at == last.begun_at > made_at
    assert (first.first, first.reached, last.first, last.reached) == (1, 1, 1, told[-1]["done"])
    assert last.since_s > first.since_s == 0.0


def test_to_tell_how_far_it_is_waits_for_nothing_but_the_first_step_and_the_end(session, told) -> None:
    session.begin(0)
    handed = [Handed(1.0 / step) for step in range(1, 12)]
    handed[0].there = True
    for step in range(1, 8):
        session.after(step, None, {"loss": handed[step - 1]})
    assert [news["done"] for news in told] == [1]
    for each in handed[:5]:
        each.there = True
    for step in range(8, 12):
        session.after(step, None, {"loss": handed[step - 1]})
    assert [(news["done"], news["metrics"]) for news in told] == [(1, {"loss": 1.0}), (5, {"loss": 0.2})]
    with pytest.raises(AssertionError, match="waited for the devices"):
        session._say(now=True)


def test_a_save_and_a_profile_are_time_in_which_the_loop_stood_still(session) -> None:
    session._saver.blocked_s = 3.0
    assert session.blocked_s == 3.0
    session.profiler = SimpleNamespace(blocked_s=2.0)
    assert session.blocked_s == 5.0
