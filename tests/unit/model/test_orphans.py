"""When silence is enough, and what is said of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.orphans import SKEW_S, Fate, Reaped, is_silent
from tests.doubles.scripted import orphan

_SPANS = st.floats(0, 1e6)


@given(ttl_s=st.floats(1, 1e6), older_than_s=_SPANS, skew_s=st.floats(-SKEW_S, SKEW_S), since=st.floats(0, 1))
def test_what_is_looked_at_within_its_time_is_never_silent(ttl_s, older_than_s, skew_s, since):
    now = 1e9
    assert not is_silent(now - since * ttl_s + skew_s, now, ttl_s, older_than_s)


@given(ttl_s=_SPANS, older_than_s=_SPANS, more=st.floats(1, 1e6))
def test_silence_is_enough_some_time(ttl_s, older_than_s, more):
    now = 1e9
    assert is_silent(now - max(ttl_s + SKEW_S, older_than_s) - more, now, ttl_s, older_than_s)


def test_what_became_of_it_is_one_line():
    lost = orphan(name="digits-train-abcdefgh", last_sign=1000.0)
    assert Reaped(orphan=lost, fate=Fate.REAPED).in_words(1000.0 + 3 * 3600) == (
        "reaped RayJob digits-train-abcdefgh of digits/train (run, attempt 1): running, not looked at for 3 h"
    )
    everybodys = Identity(deployment="tests", dag_id="", task_id="team", run_id="")
    shared = orphan(kind="RayCluster", name="team-abcdefgh", owner=everybodys, why="ready", last_sign=1000.0)
    assert Reaped(orphan=shared, fate=Fate.RESISTS, says="It stays.").in_words(1030.0) == (
        "resists RayCluster team-abcdefgh of all who name it team: ready, not looked at for 30 s; It stays."
    )
    mapped = orphan(owner=Identity(deployment="t", dag_id="d", task_id="t", run_id="r", map_index=3, attempt=2))
    assert "of d/t[3] (r, attempt 2): " in mapped.in_words(0)


def test_silence_is_never_less_than_nothing():
    assert orphan(last_sign=1000.0).silent_s(900.0) == 0.0
