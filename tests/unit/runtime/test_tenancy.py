"""A job's hold on slices over several tries: the same again while they are whole, others once they are not."""

import itertools

import pytest

from airflow_raytpu.model.errors import BrokenSliceError, LostError, NoSliceError
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import demand, slices
from airflow_raytpu.runtime.buckets import SilentError
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import Host, SliceView
from airflow_raytpu.runtime.tenancy import GRACE_S, Tenancy

NAME, WORKER, NODE = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id", "ray.io/node-id"


class Cluster:
    """Slices by name, and the placement groups that Ray was asked for and has not been told to remove."""

    def __init__(self, monkeypatch):
        self.views = {}
        self.groups = []
        self.now = 0.0
        self.busy_for = 0
        self.at = {}
        self.on_sleep = lambda: None
        monkeypatch.setattr(slices, "look", lambda _: self.see())
        monkeypatch.setattr(demand, "group", self.group)
        monkeypatch.setattr(demand, "_is_placed", lambda _: False)
        monkeypatch.setattr("ray.nodes", list)
        monkeypatch.setattr(slices, "proven", proven)
        monkeypatch.setattr(slices.time, "time", lambda: self.now)
        monkeypatch.setattr(slices.time, "sleep", self.sleep)

    def view(self, name):
        fault, of, workers = self.views[name]
        return SliceView(name, 4, (), 0, fault, claimed=name in self.heads(), of=of, workers=workers)

    def heads(self):
        return {labels[0][NAME] for _, labels in self.heads_asked_for() if WORKER in labels[0]}

    def demand(self):
        """How many slices more are asked for, whichever they are."""
        return sum(WORKER not in labels[0] for _, labels in self.heads_asked_for())

    def heads_asked_for(self):
        return [(bundles, labels) for bundles, labels in self.groups if "TPU-v6e-16-head" in bundles[0]]

    def chips(self):
        return [labels for bundles, labels in self.groups if "TPU" in bundles[0]]

    def group(self, bundles, labels, held):
        entry = bundles, labels
        self.groups.append(entry)
        held.callback(self.groups.remove, entry)
        return self

    def wait(self, within_s):
        # Ray's answer on the newest group.
        waits_for_chips = "TPU" in self.groups[-1][0][0]
        if waits_for_chips and self.busy_for:
            self.busy_for -= 1
            self.now += within_s
            return False
        return True

    def sleep(self, seconds):
        self.on_sleep()
        self.now += seconds

    def see(self):
        for when in [when for when in sorted(self.at) if when <= self.now]:
            self.views = self.at.pop(when)
        return [self.view(name) for name in sorted(self.views)]


def proven(plan_, group, views):
    return ReservedSlice(plan_, group, tuple(Host(0, view.name, view.name, 0) for view in views))


@pytest.fixture
def cluster(monkeypatch):
    return Cluster(monkeypatch)


def tenancy(shape, least=None):
    return Tenancy(plan(TpuSlice.parse(shape)), lambda _: None, least)


WHOLE = ("", "", ())


def test_the_next_try_has_the_same_slice_and_its_head_is_held_between(cluster):
    cluster.views = {"a": WHOLE, "b": WHOLE}
    with tenancy("v6e:4x4") as held:
        assert held.take(9.0).names == ("a",)
        cluster.busy_for = 3
        assert held.take(9.0).names == ("a",)
        assert cluster.heads() == {"a"}
        assert cluster.chips() == [[{NAME: "a"}] * 4]
    assert cluster.groups == []


def test_a_slice_that_broke_is_let_go_for_another(cluster):
    cluster.views = {"a": WHOLE, "b": WHOLE}
    with tenancy("v6e:4x4") as held:
        held.take(9.0)
        cluster.views["a"] = ("host 2 of 4 missing", "", ())
        assert held.take(9.0).names == ("b",)
        assert cluster.heads() == {"b"}


def test_a_slice_that_came_back_under_another_name_is_another(cluster):
    cluster.views = {"a": WHOLE}
    with tenancy("v6e:4x4") as held:
        held.take(9.0)
        cluster.views = {"c": WHOLE}
        assert held.take(9.0).names == ("c",)


def test_a_slice_whose_chips_never_come_back_is_given_up_in_bounded_time(cluster):
    cluster.views = {"a": WHOLE}
    with tenancy("v6e:4x4") as held:
        held.take(9.0)
        cluster.busy_for = 1000
        with pytest.raises(NoSliceError, match=r"No whole slice within .* 1 slice of v6e 4x4 present: 1 free"):
            held.take(60.0)
        assert cluster.groups == []
    assert cluster.now < 80


def test_a_slice_on_which_a_try_came_to_nothing_is_left_for_another(cluster):
    cluster.views = {"a": WHOLE, "b": WHOLE}
    with tenancy("v6e:4x4") as held:
        held.take(9.0)
        assert held.doubt()
        assert held.take(9.0).names == ("b",)
        assert cluster.heads() == {"b"}
        # It is as good as the other one now.
        assert not held.doubt()
        assert held.take(9.0).names == ("b",)


def test_it_is_had_again_where_there_is_no_other(cluster):
    cluster.views = {"a": WHOLE, "b": ("host 2 of 4 missing", "", ())}
    with tenancy("v6e:4x4") as held:
        held.take(9.0)
        assert not held.doubt()
        assert held.take(9.0).names == ("a",)


def test_of_two_slices_that_are_doubted_both_are_left_where_there_are_two_more(cluster):
    cluster.views = {"a": WHOLE, "b": WHOLE, "c": WHOLE}
    with tenancy("v6e:4x4*2") as held:
        held.take(9.0)
        assert not held.doubt()
        cluster.views["d"] = WHOLE
        assert held.take(9.0).names == ("c", "d")


LIES = BrokenSliceError("JAX sees 1 process", "look")
LOST = LostError("host 3 was lost", "wait")
SILENT = SilentError("gs://b/x could not be read", "try again")


@pytest.mark.parametrize(
    ("error", "fruitless", "then"),
    [
        (LOST, True, "b"),
        (LOST, False, "a"),
        (LIES, True, "b"),
        (LIES, False, "b"),
        (SILENT, True, "a"),
        (SILENT, False, "a"),
    ],
)
def test_the_end_of_a_try_says_whether_its_slices_are_to_blame(cluster, error, fruitless, then):
    cluster.views = {"a": WHOLE, "b": WHOLE}
    with tenancy("v6e:4x4") as held:
        held.take(9.0)
        loss = held.as_loss(error, fruitless=fruitless)
        assert (type(loss), loss.cause, loss.lever) == (LostError, error.cause, error.lever)
        assert held.take(9.0).names == (then,)


def test_a_slice_that_lies_is_a_loss_only_where_there_is_another(cluster):
    cluster.views = {"a": WHOLE}
    with tenancy("v6e:4x4") as held:
        held.take(9.0)
        assert held.as_loss(LOST, fruitless=True) is LOST
        with pytest.raises(BrokenSliceError, match="JAX sees 1 process"):
            held.as_loss(LIES, fruitless=True)


def test_two_slices_are_pinned_slice_by_slice(cluster):
    cluster.views = {"a": WHOLE, "b": WHOLE}
    with tenancy("v6e:4x4*2") as held:
        held.take(9.0)
        assert cluster.chips() == [[{NAME: "a"}] * 4 + [{NAME: "b"}] * 4]
        assert cluster.heads() == {"a", "b"}


def test_a_part_is_pinned_to_its_hosts_and_holds_no_head(cluster):
    cluster.views = {"a/1": ("", "a", (2, 3))}
    with tenancy("v6e:2x4/4x4") as held:
        held.take(9.0)
        assert cluster.chips() == [[{NAME: "a", WORKER: "2"}, {NAME: "a", WORKER: "3"}]]
        assert cluster.heads() == set()


def test_a_single_host_is_pinned_by_its_node(cluster):
    cluster.views = {"node": WHOLE}
    with tenancy("v6e:2x2") as held:
        held.take(9.0)
        assert cluster.groups == [([{"CPU": 1, "TPU": 4}], [{NODE: "node"}])]


BROKEN = ("host 2 of 4 missing", "", ())


def slices_of(held):
    return held.plan.slice.num_slices, held.names


def test_as_many_slices_as_it_may_have_are_taken_at_once(cluster):
    cluster.views = {"a": WHOLE, "b": WHOLE, "c": WHOLE}
    with tenancy("v6e:4x4*2", least=1) as held:
        assert slices_of(held.take(9.0)) == (2, ("a", "b"))
        assert cluster.now == 0.0
        assert cluster.demand() == 0


def test_fewer_are_taken_once_more_do_not_come_in_a_while(cluster, caplog):
    caplog.set_level("INFO")
    cluster.views = {"a": WHOLE}
    with tenancy("v6e:4x4*3", least=1) as held:
        assert slices_of(held.take(3600.0)) == (1, ("a",))
        assert GRACE_S <= cluster.now < GRACE_S + 2
        assert cluster.chips() == [[{NAME: "a"}] * 4]
    assert "1 of 3 slices are free; waiting 30 s for more" in caplog.text
    assert "going on with 1 of 3 slices, until there are more" in caplog.text


def test_what_comes_while_it_waits_for_more_is_taken_with_the_rest(cluster):
    cluster.views = {"a": WHOLE}
    cluster.at = {10.0: {"a": WHOLE, "b": WHOLE}}
    with tenancy("v6e:4x4*2", least=1) as held:
        assert slices_of(held.take(3600.0)) == (2, ("a", "b"))
        assert 10 <= cluster.now < 12


def test_with_fewer_than_it_needs_it_waits_as_long_as_for_any_slice_and_asks_for_all(cluster):
    cluster.views = {"a": WHOLE, "b": BROKEN}
    cluster.at = {100.0: {}, 200.0: {"a": WHOLE}, 220.0: {}, 300.0: {"a": WHOLE, "c": WHOLE}}
    with tenancy("v6e:4x4*3", least=2) as held:
        cluster.on_sleep = lambda: demands.append(cluster.demand())
        demands = []
        assert slices_of(held.take(3600.0)) == (2, ("a", "c"))
        assert 300 + GRACE_S <= cluster.now < 302 + GRACE_S
        assert [count for count, _ in itertools.groupby(demands)] == [2, 3, 2, 3, 1]
        cluster.views = {}
        with pytest.raises(NoSliceError):
            held.take(cluster.now + 60)


def test_after_a_loss_it_goes_on_at_once_with_the_slices_that_are_left(cluster):
    cluster.views = {"a": WHOLE, "b": WHOLE, "c": WHOLE}
    with tenancy("v6e:4x4*3", least=1) as held:
        held.take(9.0)
        cluster.views["b"] = BROKEN
        assert slices_of(held.take(9.0)) == (2, ("a", "c"))
        assert cluster.chips() == [[{NAME: "a"}] * 4 + [{NAME: "c"}] * 4]
        assert cluster.heads() == {"a", "c"}
        assert cluster.now == 0.0
        # It came back, but nobody was told to look for it.
        cluster.views["b"] = WHOLE
        assert slices_of(held.take(9.0)) == (2, ("a", "c"))
    assert cluster.groups == []


def test_a_loss_that_shows_late_is_waited_for_with_the_chips(cluster):
    cluster.views = {"a": WHOLE, "b": WHOLE}
    with tenancy("v6e:4x4*2", least=1) as held:
        held.take(9.0)
        cluster.busy_for = 4
        cluster.at = {6.0: {"a": WHOLE, "b": BROKEN}}
        assert slices_of(held.take(9.0)) == (1, ("a",))


def test_with_fewer_left_than_it_needs_it_looks_for_others(cluster):
    cluster.views = {"a": WHOLE, "b": WHOLE, "c": WHOLE}
    with tenancy("v6e:4x4*2", least=2) as held:
        held.take(9.0)
        cluster.views["b"] = BROKEN
        assert slices_of(held.take(9.0)) == (2, ("a", "c"))
        assert cluster.heads() == {"a", "c"}


def test_a_further_slice_is_held_beside_and_taken_with_the_next_try(cluster):
    cluster.views = {"b": WHOLE}
    with tenancy("v6e:4x4*2", least=1) as held:
        held.take(100.0)
        assert held.more() == ()
        assert cluster.demand() == 1
        cluster.views["a"] = WHOLE
        assert held.more() == held.more() == ("a",)
        assert (cluster.heads(), cluster.demand()) == ({"a", "b"}, 0)
        assert cluster.chips() == [[{NAME: "b"}] * 4, [{NAME: "a"}] * 4]
        # By name, as the ids of slices are given.
        assert slices_of(held.take(0.0)) == (2, ("a", "b"))
        assert cluster.chips() == [[{NAME: "a"}] * 4 + [{NAME: "b"}] * 4]
    assert cluster.groups == []


def test_a_further_slice_that_goes_again_is_let_go(cluster):
    cluster.views = {"a": WHOLE, "b": WHOLE}
    with tenancy("v6e:4x4*3", least=1) as held:
        held.take(100.0)
        cluster.views["c"] = WHOLE
        assert held.more() == ("c",)
        cluster.views["c"] = BROKEN
        assert held.more() == ()
        assert (cluster.heads(), cluster.demand()) == ({"a", "b"}, 1)
        held.rest()
        assert cluster.demand() == 0
        cluster.views["c"] = WHOLE
        held.more()
        cluster.views["c"] = BROKEN
        # Unseen until the next try begins.
        assert slices_of(held.take(0.0)) == (2, ("a", "b"))
        assert cluster.heads() == {"a", "b"}


def test_a_further_slice_whose_chips_somebody_has_is_left(cluster):
    cluster.views = {"a": WHOLE}
    with tenancy("v6e:4x4*2", least=1) as held:
        held.take(100.0)
        cluster.views["b"] = WHOLE
        cluster.busy_for = 1
        assert held.more() == ()
        assert cluster.heads() == {"a"}
        assert held.more() == ("b",)
        assert cluster.heads() == {"a", "b"}
    assert cluster.groups == []


def test_a_further_slice_takes_the_place_of_one_that_is_lost_meanwhile(cluster):
    cluster.views = {"a": WHOLE}
    with tenancy("v6e:4x4*2", least=1) as held:
        held.take(100.0)
        cluster.views["b"] = WHOLE
        held.more()
        cluster.views["a"] = BROKEN
        assert slices_of(held.take(0.0)) == (1, ("b",))
