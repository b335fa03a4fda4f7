from __future__ import annotations

import json

import pytest

from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.slices import Holder, SliceCondition, SliceState, describe, idle, of_shape, span

TRAIN = Identity(deployment="d", dag_id="digits", task_id="train", run_id="manual__2026-11-29T10:00:00")
ETL = Identity(deployment="d", dag_id="etl", task_id="embed", run_id="r", map_index=3)


def state(condition: SliceCondition = SliceCondition.IDLE, **changes) -> SliceState:
    return SliceState(
        **{
            "cluster": "shared",
            "name": "shared-0",
            "shape": "v6e:4x4",
            "hosts": 4,
            "present": (0, 1, 2, 3),
            "condition": condition,
            **changes,
        }
    )


BUSY = state(SliceCondition.BUSY, holders=(Holder(job="j", owner=TRAIN),), since=1000.0)
BROKEN = state(SliceCondition.BROKEN, present=(0, 1, 3), fault="host 2 of 4 missing", since=3400.0)


@pytest.mark.parametrize(
    ("slices", "now", "says"),
    [
        ([], 0, "none present"),
        ([state()], 0, "1 present, 1 idle"),
        ([BUSY, BROKEN], 0, "2 present, 1 busy (digits/train), 1 broken (host 2 of 4 missing)"),
        ([BROKEN, BUSY], 3460, "2 present, 1 busy (digits/train, 41 min), 1 broken (host 2 of 4 missing, 60 s)"),
        ([state(SliceCondition.BUSY)], 0, "1 present, 1 busy"),
        ([BUSY, BUSY], 0, "2 present, 2 busy (digits/train; digits/train)"),
        ([state(SliceCondition.STARTING, present=())], 9, "1 present, 1 starting"),
    ],
)
def test_a_picture_in_one_line(slices, now, says):
    assert describe(slices, now) == says


def test_two_holders_of_one_slice_are_both_named():
    both = state(SliceCondition.BUSY, holders=(Holder(job="j", owner=TRAIN), Holder(job="k", owner=ETL)))
    assert describe([both]) == "1 present, 1 busy (digits/train, etl/embed[3])"


@pytest.mark.parametrize(
    ("holder", "says"),
    [
        (Holder(job="raysubmit_1"), "job raysubmit_1"),
        (Holder(job=""), "somebody"),
        (Holder(job="x", owner=TRAIN), "digits/train"),
    ],
)
def test_a_holder_is_named_as_well_as_it_is_known(holder, says):
    assert str(holder) == says


def test_what_is_missing():
    assert BROKEN.missing == (2,)
    assert state().missing == ()


def test_only_whole_slices_that_nobody_holds_are_idle_and_only_of_that_shape():
    other = state(shape="v6e:2x2")
    assert idle(of_shape([state(), BUSY, BROKEN, other], "v6e:4x4")) == [state()]


def test_it_is_plain_json():
    assert json.loads(json.dumps(BUSY.to_dict())) == BUSY.to_dict()
    assert BUSY.to_dict()["holders"][0]["owner"]["dag_id"] == "digits"
    assert state().to_dict()["since"] is None


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(-3, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (200_000, "2 days")],
)
def test_a_span_in_one_unit(seconds, says):
    assert span(seconds) == says
