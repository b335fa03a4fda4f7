"""An elastic run's sizes, and its search for more slices: when it looks, what it tells the gang, when it stops."""

from types import SimpleNamespace

import pytest

from airflow_raytpu.model.goodput import Pace
from airflow_raytpu.model.spent import Spent
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import resizing
from airflow_raytpu.runtime.resizing import STEADY_S, Sizes, wish
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import Host
from airflow_raytpu.runtime.tally import StepTally

ONE = plan(TpuSlice.parse("v6e:4x4"))


def held(*names):
    return ReservedSlice(ONE.sized(len(names)), None, tuple(Host(0, name, name, 0) for name in names))


class Run:
    """A driver whose loop is under way, with slices that come and go, and a clock of its own."""

    def __init__(self, monkeypatch, most=2, spent=None):
        self.now, self.spare, self.looks, self.rested = 1000.0, (), [], 0
        self.news = {"loop": {"done": 1}}
        fake = SimpleNamespace(
            collect=lambda _, topic: self.news.get(topic),
            publish=lambda _, topic, word: self.news.update({topic: word}),
            drop=lambda _, topic: self.news.pop(topic, None),
            Pump=lambda turn: self,
        )
        monkeypatch.setattr(resizing, "relay", fake)
        self.tally = StepTally(spent or Spent(), at=self.now)
        self.sizes = Sizes("request", most, self.tally, lambda: self.now)
        self.entered = 0

    def __enter__(self):
        self.entered += 1

    def __exit__(self, *_):
        # As the pump does, a last time.
        self.sizes.turn(self)

    def more(self):
        self.looks.append(self.now)
        if isinstance(self.spare, Exception):
            raise self.spare
        return self.spare

    def rest(self):
        self.rested += 1

    def work(self, seconds):
        """The pump's turns for so long."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            self.sizes.turn(self)

    def sees(self, *names):
        """These are spare now: when that is seen, and what is spent by then."""
        self.spare = names
        while bool(wish("request")) is not bool(names):
            self.work(0.5)
        return self.now, self.tally.so_far(Pace(), self.now)

    def a_try(self, *names, step=0, seconds=60.0, spare=()):
        """A try on these slices from its beginning to its end, beside which others come."""
        self.news.pop("resize", None)
        self.sizes.begin(held(*names), step)
        self.tally.wait(self.now)
        self.spare = spare
        with self.sizes.growing(self):
            self.work(seconds)
        self.tally.end(Pace(), self.now)


@pytest.fixture
def run(monkeypatch):
    return Run(monkeypatch)


def test_the_gang_is_told_once_of_a_slice_that_comes(run, caplog):
    caplog.set_level("INFO")
    run.a_try("a", seconds=10.0)
    assert wish("request") == ""
    assert 3 <= len(run.looks) <= 4
    run.a_try("a", seconds=60.0, spare=("b",))
    assert wish("request") == "slice b free"
    assert caplog.text.count("slice b free: ending at the next save, for 2 slices") == 1


def test_it_does_not_look_where_all_slices_are_held_or_nobody_could_save(run):
    run.a_try("a", "b")
    assert (run.entered, run.looks) == (0, [])
    # A loop without our helper only reports; it could not be told to end.
    run.news = {"report": {"done": 9}}
    run.a_try("a", spare=("b",))
    assert (run.looks, wish("request")) == ([], "")


def test_what_is_found_as_the_gang_ends_is_not_told_to_the_next(run):
    run.sizes.begin(held("a"), 0)
    with run.sizes.growing(run):
        pass
    assert run.looks == []


def test_where_it_went_on_with_another_number_is_told_in_the_result(run, caplog):
    caplog.set_level("INFO")
    run.a_try("a", "b", step=0)
    run.a_try("a", step=10)
    run.a_try("a", step=15)
    run.a_try("a", "c", step=30)
    run.a_try("c", "d", step=35)
    assert list(run.tally.spent.resizes) == [
        {"at_step": 10, "slices": 1, "why": "slice b lost"},
        {"at_step": 30, "slices": 2, "why": "slice c free"},
    ]
    assert "going on with 1 of 2 slices: slice b lost" in caplog.text


@pytest.mark.parametrize(
    ("before", "names", "why"),
    [
        (("a", "b"), ("a",), "slice b lost"),
        (("a", "b"), ("c",), "slice a and b lost; slice c free"),
        (("a",), ("a", "b"), "slice b free"),
        (("a", "b"), ("c", "d"), None),
        ((), ("a",), None),
    ],
)
def test_another_number_than_the_attempt_before_had_is_told_as_well(monkeypatch, before, names, why):
    earlier = {"at_step": 10, "slices": 2, "why": "slice b free"}
    run = Run(monkeypatch, spent=Spent(slices=before, resizes=(earlier,)))
    run.a_try(*names, step=20)
    found = [{"at_step": 20, "slices": len(names), "why": why}] if why else []
    assert list(run.tally.spent.resizes) == [earlier, *found]


def test_slices_that_are_not_held_do_not_count_and_spare_ones_lie_idle(run):
    run.a_try("a", "b", seconds=100.0)
    assert run.tally.spent.held_s == 100.0
    run.a_try("a", seconds=100.0)
    assert (run.tally.spent.held_s, run.tally.goodput.idle_s) == (150.0, 0.0)
    began = run.now
    run.sizes.begin(held("a"), 0)
    with run.sizes.growing(run):
        run.work(40.0)
        found, told = run.sees("b")
        run.work(20.0)
        gone, _ = run.sees()
        first_s = gone - found
        run.work(30.0)
        found, told = run.sees("b")
        assert told.goodput["idle_s"] == first_s / 2
        run.work(50.0)
        told = run.tally.so_far(Pace(), run.now)
        # A save, after which the gang ends, and the pump does not turn any more.
        run.now += 2.0
    run.tally.end(Pace(), run.now)
    assert first_s >= 20.0
    assert run.tally.goodput.idle_s == (first_s + run.now - found) / 2
    assert run.tally.spent.held_s == 150.0 + (run.now - began + first_s + run.now - found) / 2
    assert told.held_s == run.tally.spent.held_s - 2.0, "what a killed driver leaves has it, too"


def test_a_spare_slice_does_not_count_for_the_try_that_takes_it_nor_while_it_is_being_taken(run):
    def slow():
        run.now += 4.0
        return ("b",)

    run.more = slow
    run.sizes.begin(held("a"), 0)
    with run.sizes.growing(run):
        run.work(0.5)
        assert (run.sizes._spare, run.tally.spare_s) == (("b",), 0.0)
    run.tally.end(Pace(), run.now)
    run.more = lambda: ()
    before = run.tally.goodput.idle_s
    run.a_try("a", "b")
    assert run.tally.goodput.idle_s == before


def test_a_spare_slice_that_goes_again_is_taken_back_and_the_next_look_put_off(run):
    run.sizes.begin(held("a"), 0)
    with run.sizes.growing(run):
        pauses = []
        for _ in range(8):
            run.spare = ("b",)
            while not wish("request"):
                run.work(0.5)
            run.spare = ()
            run.looks.clear()
            while wish("request"):
                run.work(0.5)
            last = run.now
            run.looks.clear()
            while not run.looks:
                run.work(0.5)
            pauses.append(run.now - last)
    assert run.rested == 8
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def pause_after(run, *tries):
    """How long it is until the first look, once the tries are over and another begins on one slice."""
    for names, seconds, spare in tries:
        run.a_try(*names, seconds=seconds, spare=spare)
    began = run.now
    run.looks.clear()
    run.a_try("a", seconds=4000.0)
    return run.looks[0] - began


@pytest.mark.parametrize(
    ("tries", "pause_s"),
    [
        # Lost without ever having grown.
        ([("ab", 60.0, ())], 0),
        ([("a", 60.0, "b"), ("ab", 60.0, ())], 60),
        ([("a", 60.0, "b"), ("ab", 60.0, ()), ("a", 99.0, "b"), ("ab", 60.0, ())], 120),
        ([("a", 60.0, "b"), ("ab", 60.0, ()), ("a", 99.0, "b"), ("ab", STEADY_S, ())], 0),
        # It ended for a slice that was gone when the next try began.
        ([("a", 60.0, "b")], 60),
        # One came, and the other went meanwhile.
        ([("b", 60.0, "a")], 0),
    ],
)
def test_after_a_growth_that_came_to_nothing_it_waits_longer(run, tries, pause_s):
    assert pause_s <= pause_after(run, *tries) <= pause_s + 1


def test_a_look_that_fails_does_not_end_the_training(run, caplog):
    run.a_try("a", seconds=130.0, spare=RuntimeError("no GCS"))
    assert len(run.looks) == 3
    assert caplog.text.count("No further slice could be looked for: no GCS") == 3
