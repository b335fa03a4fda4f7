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


def turns(policy, rank, board, paces, notice_at=None, start=0):
    """At which steps this rank saves, and where it leaves, when a step takes so long each."""
    now = [0.0]
    step = start

    def noticed():
        return "it goes" if notice_at is not None and step >= notice_at else ""

    each = Agreement(policy, rank, board, noticed if rank == 0 else silent, lambda: now[0])
    each.begin(start)
    saves = []
    for pace in paces:
        now[0] += pace
        step += 1
        turn = each.at(step)
        if turn.save:
            saves.append(step)
        if turn.leave:
            return saves, step
    return saves, None


PACES = st.lists(st.sampled_from([0.0, 0.001, 0.1, 0.7, 5.0, 40.0]), min_size=1, max_size=300)


@given(
    PACES,
    PACES,
    st.integers(1, 40) | st.none(),
    st.floats(0.5, 100) | st.none(),
    st.integers(0, 300) | st.none(),
    st.integers(0, 5),
)
@settings(deadline=None)
def test_all_ranks_save_and_leave_at_the_same_steps(paces, others, every, seconds, notice_at, start):
    policy, board = CheckpointPolicy(every_steps=every, every_seconds=seconds), Board()

    first = turns(policy, 0, board, paces, notice_at, start)
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
    assert turns(CheckpointPolicy(every_steps=100), 0, Board(), [2.0] * 50, notice_at=37) == ([37], 37)


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
