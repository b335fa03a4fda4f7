"""A job's hold on slices over several tries: the same again while they are whole, others once they are not."""

import pytest

from airflow_raytpu.model.errors import NoSliceError
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import slices
from airflow_raytpu.runtime.slices import Tenancy
from airflow_raytpu.runtime.survey import Host, SliceView

NAME, WORKER, NODE = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id", "ray.io/node-id"


class Cluster:
    """Slices by name, and the placement groups that Ray was asked for and has not been told to remove."""

    def __init__(self, monkeypatch):
        self.views = {}
        self.groups = []
        self.now = 0.0
        self.busy_for = 0
        monkeypatch.setattr(slices, "look", lambda _: [self.view(name) for name in sorted(self.views)])
        monkeypatch.setattr(slices, "_group", self.group)
        monkeypatch.setattr(slices, "_placed", lambda plan_, group, views: (Host(0, views[0].name, views[0].name, 0),))
        monkeypatch.setattr(slices.time, "time", lambda: self.now)
        monkeypatch.setattr(slices.time, "sleep", self.sleep)

    def view(self, name):
        fault, of, workers = self.views[name]
        return SliceView(name, 4, (), 0, fault, claimed=name in self.heads(), of=of, workers=workers)

    def heads(self):
        return {labels[0][NAME] for bundles, labels in self.groups if "TPU-v6e-16-head" in bundles[0]}

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
        self.now += seconds


@pytest.fixture
def cluster(monkeypatch):
    return Cluster(monkeypatch)


def tenancy(shape):
    return Tenancy(plan(TpuSlice.parse(shape)), lambda _: None)


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
