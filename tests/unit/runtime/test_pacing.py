"""What rank 0 tells of where its time goes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_raytpu.model.goodput import Pace
from airflow_raytpu.model.policies import CheckpointPolicy
from airflow_raytpu.runtime import checkpoints
from airflow_raytpu.runtime.checkpoints import Session
from airflow_raytpu.runtime.pacing import Stopwatch, of_reports


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


def test_a_save_and_a_profile_are_time_in_which_the_loop_stood_still(session) -> None:
    session._saver.blocked_s = 3.0
    assert session.blocked_s == 3.0
    session.profiler = SimpleNamespace(blocked_s=2.0)
    assert session.blocked_s == 5.0
