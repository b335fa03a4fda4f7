"""Progress is told seldom, a new phase at once, and the outcome at all costs."""

import pytest

from airflow_raytpu.model.result import Outcome
from airflow_raytpu.runtime import outbox as outbox_module
from airflow_raytpu.runtime.outbox import Outbox, finite


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def written():
    return []


@pytest.fixture
def outbox(make_request, written, clock):
    return Outbox(make_request(), write=lambda uri, value: written.append((uri, value)), clock=clock)


def test_a_new_phase_is_written_at_once(outbox, written):
    outbox.tell(phase="training")
    outbox.tell(phase="saving")

    assert [value["phase"] for _, value in written] == ["training", "saving"]
    assert written[0][0].endswith(".progress.json")


def test_steps_are_written_once_a_second_and_the_newest_is_not_lost(outbox, written, clock):
    outbox.tell(phase="training")
    for step in range(1, 11):
        clock.now += 0.25
        outbox.tell(done=step)
    outbox.flush()

    assert [value["done"] for _, value in written] == [0, 4, 8]

    clock.now += 1.0
    outbox.flush()
    outbox.flush()

    assert [value["done"] for _, value in written][3:] == [10]


def test_at_follows_the_work_and_not_the_messages(outbox, clock):
    outbox.tell(phase="training", done=1)
    clock.now += 60
    outbox.tell(message="still here", metrics={"loss": 1.0})

    assert outbox.latest.at == 1000.0

    outbox.tell(done=2)

    assert outbox.latest.at == 1060.0
    assert outbox.latest.first_at == 1000.0


def test_an_unwritable_place_does_not_stop_the_work(make_request, clock):
    def refuse(uri, value):
        raise OSError("disk full")

    outbox = Outbox(make_request(), write=refuse, clock=clock)

    outbox.tell(phase="training")

    assert outbox.latest.phase == "training"


def test_the_last_progress_is_told_before_the_outcome(outbox, written):
    outbox.tell(phase="training", done=299)
    outbox.tell(done=300)

    outbox.finish(Outcome(request="r"))

    assert [value.get("done") for _, value in written] == [299, 300, None]


def test_the_outcome_is_tried_again(make_request, monkeypatch):
    naps, tries = [], []
    monkeypatch.setattr(outbox_module.time, "sleep", naps.append)

    def refuse_twice(uri, value):
        tries.append(uri)
        if len(tries) < 3:
            raise OSError("not now")

    request = make_request()
    Outbox(request, write=refuse_twice).finish(Outcome(request=request.name))

    assert tries == [request.outbox("result")] * 3
    assert len(naps) == 2


def test_an_outcome_that_nobody_can_read_is_an_error(make_request, monkeypatch):
    monkeypatch.setattr(outbox_module.time, "sleep", lambda _: None)

    def refuse(uri, value):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        Outbox(make_request(), write=refuse).finish(Outcome(request="r"))


def test_only_numbers_that_json_can_hold_are_metrics():
    assert finite({"loss": 1, "nan": float("nan"), "inf": float("inf"), "text": "x", "none": None}) == {"loss": 1.0}
