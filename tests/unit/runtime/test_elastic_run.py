"""A whole elastic run of the driver, on slices that are lost and come: all but the gang itself, which is told here."""

from functools import partial
from types import SimpleNamespace

import pytest

from airflow_raytpu.model.errors import LostError
from airflow_raytpu.model.spent import after_loss
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import relay, resizing
from airflow_raytpu.runtime import train as train_module
from airflow_raytpu.runtime.commits import Commit, record
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.resizing import ResizeError
from airflow_raytpu.runtime.train import _Job
from airflow_raytpu.runtime.watch import Watch
from tests.unit.runtime.test_tenancy import BROKEN, WHOLE, Cluster


class Pump:
    """Turns when it is told to."""

    def __init__(self, turn):
        self.turn = turn

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Driver:
    """A driver on slices ``a`` and ``b``, whose gangs do as :attr:`gangs` say, one after the other."""

    def __init__(self, make_request, monkeypatch, began=0.0, **arguments):
        self.cluster, self.news, self.pumps, self.tries = Cluster(monkeypatch), {}, [], []
        self.cluster.now = began
        self.cluster.views = {"a": WHOLE, "b": WHOLE}
        for name, fake in {
            "publish": lambda _, topic, word: self.news.update({topic: word}),
            "collect": lambda _, topic: self.news.get(topic),
            "drop": lambda _, topic: self.news.pop(topic, None),
            "clear": lambda _: self.news.clear(),
            "Pump": self.pump,
        }.items():
            monkeypatch.setattr(relay, name, fake)
        monkeypatch.setattr(train_module.os, "environ", dict(train_module.os.environ))
        stated = {
            "train_loop": "m:f",
            "train_loop_config": {"steps": 100},
            "checkpoint": {"every_steps": 10, "keep": 2},
            "failures": 0,
            "evictions": 9,
            "resume": "auto",
            "elastic": [1, 2],
        }
        request = make_request(slice="v6e:4x4*2", arguments={**stated, **arguments})
        self.job = _Job(request, Outbox(request, write=lambda *_: None), plan(TpuSlice.parse(request.slice)))
        monkeypatch.setattr(train_module, "Watch", partial(Watch, clock=lambda: self.cluster.now))
        self.job._tally.at = began
        self.job._sizes = resizing.Sizes(request.name, 2, self.job._tally, lambda: self.cluster.now)
        monkeypatch.setattr(self.job, "_trainer", self.trainer)

    def pump(self, turn):
        self.pumps.append(Pump(turn))
        return self.pumps[-1]

    def trainer(self, held, restore):
        self.tries.append((restore.step if restore else 0, held.names, self.job._settings(held, restore).devices))
        return SimpleNamespace(fit=self.gangs.pop(0))

    def saves(self, step):
        record(Commit(step, f"{self.job._root}/{step}", self.job._request.name))
        self.news["loop"] = {"done": step, "at": self.cluster.now, "metrics": {}}

    def killed(self):
        """The driver dies after another ten seconds, just when it has told what is spent."""
        self.cluster.now += 10.0
        self.pumps[-2].turn()
        raise KeyboardInterrupt

    def looks(self):
        self.cluster.now += 5.0
        self.pumps[-1].turn()
        return resizing.wish(self.job._request.name)

    def loses(self, name):
        from ray.train import WorkerGroupError

        self.cluster.views[name] = BROKEN
        raise WorkerGroupError("", {3: OSError("the actor died")})

    def leaves(self, step):
        from ray.train import WorkerGroupError

        self.saves(step)
        raise WorkerGroupError("", {0: ResizeError(f"saved at step {step}"), 2: OSError("the actor died")})

    def ends(self, devices):
        value = {"step": 100, "metrics": {}, "checkpoint": "uri", "processes": devices // 4, "devices": devices}
        return SimpleNamespace(return_value=value, checkpoint=None)


@pytest.fixture
def driver(make_request, monkeypatch):
    return lambda **arguments: Driver(make_request, monkeypatch, **arguments)


def test_one_of_two_slices_is_lost_and_another_comes(driver):
    one = driver()

    def pair():
        one.saves(10)
        one.loses("b")

    def alone():
        one.saves(20)
        assert one.looks() == ""
        assert one.cluster.demand() == 1
        one.cluster.views["c"] = WHOLE
        assert one.looks() == "slice c free"
        one.cluster.now += 4.0
        one.leaves(30)

    def again():
        assert one.cluster.demand() == 0
        return one.ends(32)

    one.gangs = [pair, alone, again]
    value = one.job.run()

    assert one.tries == [(0, ("a", "b"), 32), (10, ("a",), 16), (30, ("a", "c"), 32)]
    assert (value["evictions"], value["failures"], value["devices"]) == (1, 0, 32)
    assert [(each["at_step"], each["slices"]) for each in value["resizes"]] == [(10, 1), (30, 2)]
    # One of two slices for 14 s, and the other as a spare one for the last 4 s.
    assert (value["held_s"], value["goodput"]["idle_s"], value["chip_hours"]) == (9.0, 2.0, round(32 * 9 / 3600, 4))
    assert one.cluster.groups == []


def test_what_an_attempt_that_was_lost_had_goes_on_in_the_next(driver):
    first = driver(began=1000.0)

    def alone():
        first.saves(20)
        first.killed()

    first.gangs = [lambda: first.loses("b"), alone]
    with pytest.raises(KeyboardInterrupt):
        first.job.run()
    spent = after_loss(first.job._arguments, first.job._outbox.latest, "the job is gone")
    second = driver(began=2000.0, spent=spent.to_dict())

    def pair():
        second.cluster.now += 20.0
        return second.ends(32)

    second.gangs = [pair]
    value = second.job.run()

    assert second.tries == [(20, ("a", "b"), 32)]
    assert value["resizes"] == [
        {"at_step": 0, "slices": 1, "why": "slice b lost"},
        {"at_step": 20, "slices": 2, "why": "slice b free"},
    ]
    assert (value["evictions"], value["held_s"]) == (2, 25.0)
    assert value["chip_hours"] == round((16 * 10 + 32 * 20) / 3600, 4)


def test_a_loop_without_our_helper_gets_no_further_slice_and_none_is_held_for_it(driver):
    one = driver()

    def alone():
        one.news["report"] = {"done": 5, "at": 1.0, "metrics": {}}
        one.cluster.views["c"] = WHOLE
        assert one.looks() == ""
        assert one.cluster.heads() == {"a"}
        return one.ends(16)

    one.gangs = [lambda: one.loses("b"), alone]
    value = one.job.run()

    assert [names for _, names, _ in one.tries] == [("a", "b"), ("a",)]
    assert value["resizes"] == [{"at_step": 0, "slices": 1, "why": "slice b lost"}]


def test_a_slice_that_comes_and_goes_costs_a_restart_each_time_and_then_patience(driver):
    one = driver()

    def alone():
        one.saves(10)
        one.cluster.views["b"] = WHOLE
        assert one.looks() == "slice b free"
        one.leaves(20)

    def alone_again():
        one.saves(30)
        one.cluster.views["b"] = WHOLE
        for _ in range(11):
            assert one.looks() == ""
        assert one.looks() == "slice b free"
        return one.ends(16)

    one.gangs = [lambda: one.loses("b"), alone, lambda: one.loses("b"), alone_again]
    value = one.job.run()

    assert [names for _, names, _ in one.tries] == [("a", "b"), ("a",), ("a", "b"), ("a",)]
    assert value["evictions"] == 2
    assert one.cluster.groups == []


def test_an_eviction_too_many_ends_it_with_slices_left(driver):
    one = driver(evictions=0)
    one.gangs = [lambda: one.loses("b")]

    with pytest.raises(LostError, match="the actor died"):
        one.job.run()

    assert one.cluster.groups == []
