"""Ranks that never wait for one another save at the same steps all the same."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_raytpu.model.errors import LostError
from airflow_raytpu.model.policies import CheckpointPolicy
from airflow_raytpu.runtime import agreement
from airflow_raytpu.runtime.agreement import Agreement, Relayed


class Board:
    def __init__(self):
        self.words, self.dropped = {}, []

    def say(self, topic, word):
        self.words[topic] = word

    def hear(self, topic, within_s):
        return self.words[topic]

    def drop(self, topic):
        self.dropped.append(topic)


def silent():
    raise AssertionError("only rank 0 looks for notices")


def turns(policy, rank, board, paces, notice_at=None, start=0, wish=range(0)):
    """At which steps this rank saves, and where and why it leaves, when a step takes so long each."""
    now = [0.0]
    step = start

    def noticed():
        return "it goes" if notice_at is not None and step >= notice_at else ""

    def wished():
        return "more" if step in wish else ""

    asked = (noticed, lambda: now[0], wished) if rank == 0 else (silent, lambda: now[0], silent)
    each = Agreement(policy, rank, board, *asked)
    each.begin(start)
    saves = []
    for pace in paces:
        now[0] += pace
        step += 1
        turn = each.at(step)
        if turn.save:
            saves.append(step)
        if turn.leave or turn.part:
            return saves, step, turn.leave or turn.part
    return saves, None, ""


PACES = st.lists(st.sampled_from([0.0, 0.001, 0.1, 0.7, 5.0, 40.0]), min_size=1, max_size=300)


@given(
    PACES,
    PACES,
    st.integers(1, 40) | st.none(),
    st.floats(0.5, 100) | st.none(),
    st.integers(0, 300) | st.none(),
    st.integers(0, 5),
    st.builds(range, st.integers(0, 300), st.integers(0, 300)),
)
@settings(deadline=None)
def test_all_ranks_save_and_leave_at_the_same_steps(paces, others, every, seconds, notice_at, start, wish):
    policy, board = CheckpointPolicy(every_steps=every, every_seconds=seconds), Board()

    first = turns(policy, 0, board, paces, notice_at, start, wish)
    # Another rank is as fast as it likes, and its clock says what it likes.
    other = turns(policy, 1, board, (others * len(paces))[: len(paces)], None, start)

    assert other == first


def test_a_rank_meets_about_once_a_second():
    board = Board()

    turns(CheckpointPolicy(every_steps=10**6), 0, board, [0.01] * 3000)

    assert 30 <= len(board.words) <= 45


def test_the_clock_and_the_steps_count_from_the_save_before():
    policy = CheckpointPolicy(every_steps=50, every_seconds=30)

    assert turns(policy, 0, None, [1.0] * 40 + [0.1] * 100)[0] == [30, 80, 130]


def test_the_stride_grows_slowly_while_the_devices_are_still_behind():
    board = Board()

    turns(CheckpointPolicy(every_steps=10**6), 0, board, [0.001] * 40 + [1.0] * 40)

    met = sorted(int(topic.split()[1]) for topic in board.words)
    # 32 steps are handed over at once; from then on they take a second each.
    assert max(b - a for a, b in pairwise(met)) <= 32


def test_a_notice_is_heeded_at_the_next_step_of_a_slow_loop():
    assert turns(CheckpointPolicy(every_steps=100), 0, Board(), [2.0] * 50, notice_at=37) == ([37], 37, "it goes")


def test_a_wish_waits_for_the_save_that_is_due():
    wished, every = range(13, 100), CheckpointPolicy(every_steps=10)
    assert turns(every, 0, Board(), [2.0] * 50, wish=wished) == ([10, 20], 20, "more")
    by_the_clock = CheckpointPolicy(every_seconds=30)
    assert turns(by_the_clock, 0, Board(), [2.0] * 50, wish=wished) == ([15], 15, "more")
    # One that is told in the very step of a save is heeded there.
    assert turns(every, 0, Board(), [2.0] * 50, wish=range(20, 100)) == ([10, 20], 20, "more")


def test_a_wish_that_is_taken_back_in_time_ends_nothing():
    assert turns(CheckpointPolicy(every_steps=10), 0, Board(), [2.0] * 25, wish=range(13, 18))[1:] == (None, "")


def test_what_every_rank_has_heard_is_cleared_away():
    board = Board()

    turns(CheckpointPolicy(every_steps=10), 0, board, [2.0] * 40)

    # At step 40, what was said up to 30: whoever was there for that save has heard it.
    assert len(board.dropped) == 30
    assert set(board.dropped) < set(board.words)


def test_rank_0_that_never_speaks_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(agreement.relay, "collect", lambda *_: None)

    with pytest.raises(LostError, match="Rank 0 has said nothing of step 5 for 0 s"):
        Relayed("request", "token").hear("step 5", 0.0)


def test_only_the_gangs_own_nodes_count(monkeypatch):
    from ray._private.state import GlobalState

    monkeypatch.setattr(GlobalState, "get_draining_nodes", lambda _: {"a" * 56: 0, "b" * 56: 10_000})
    monkeypatch.setattr(agreement.time, "time", lambda: 3.0)

    assert agreement.draining(frozenset({"c" * 56})) == ""
    assert agreement.draining(frozenset({"a" * 56, "b" * 56})) == "Ray drains node bbbbbbbb in 7 s"
    assert agreement.draining(frozenset({"a" * 56})) == "Ray drains node aaaaaaaa"
