"""Deadlines are checked when they are stated and absolute once they run."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.model.deadlines import Deadlines, Limits
from airflow_raytpu.model.errors import DeadlineError


@pytest.mark.parametrize("name", ["slice_wait", "start", "stall", "total"])
@pytest.mark.parametrize("value", [timedelta(0), timedelta(seconds=-1)])
def test_a_limit_must_leave_some_time(name, value):
    with pytest.raises(DeadlineError, match=name):
        Deadlines(**{name: value})


def test_a_limit_beyond_the_total_is_refused_with_both_numbers():
    with pytest.raises(DeadlineError, match=r"stall is 2:00:00 but total is 1:00:00") as caught:
        Deadlines(
            slice_wait=timedelta(minutes=1),
            start=timedelta(minutes=1),
            stall=timedelta(hours=2),
            total=timedelta(hours=1),
        )
    assert "Raise total" in str(caught.value)


@given(st.floats(0, 4e9), st.integers(1, 10**6))
def test_limits_survive_json(now, seconds):
    limits = Deadlines(
        slice_wait=timedelta(seconds=seconds),
        start=timedelta(seconds=seconds),
        stall=timedelta(seconds=seconds),
        total=timedelta(seconds=seconds),
    ).since(now)
    assert Limits.from_dict(limits.to_dict()) == limits
    assert limits.total_until == now + seconds


def test_a_short_total_shortens_what_nobody_stated():
    limits = Deadlines(total=timedelta(minutes=10))
    assert (limits.slice_wait, limits.start, limits.stall) == (timedelta(minutes=10),) * 3
