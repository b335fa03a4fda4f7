"""What the nodes say about slices."""

import pytest

from airflow_raytpu.model.errors import BrokenSliceError, NoSliceError
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime.slices import Lookout
from airflow_raytpu.runtime.survey import Host, describe, own_slice, survey, verify

PLAN = plan(TpuSlice.parse("v6e:4x4"))


def node(name, worker, *, topology="4x4", pod="v6e-16", chips=4, alive=True):
    labels = {
        "ray.io/tpu-slice-name": name,
        "ray.io/tpu-worker-id": str(worker),
        "ray.io/tpu-topology": topology,
        "ray.io/tpu-pod-type": pod,
    }
    return {"NodeID": f"{name}-{worker}", "Alive": alive, "Labels": labels, "Resources": {"TPU": chips, "CPU": 4}}


def slice_of(name, workers=range(4), **changes):
    return [node(name, worker, **changes) for worker in workers]


def free(nodes):
    return {node["NodeID"]: dict(node["Resources"]) for node in nodes}


def test_free_busy_and_broken():
    nodes = [
        *slice_of("a"),
        *slice_of("b"),
        *slice_of("c", (0, 1, 3)),
        {"NodeID": "head", "Alive": True, "Resources": {}},
    ]
    spare = free(nodes)
    # Ray leaves out what is at zero.
    del spare["b-2"]["TPU"]

    views = survey(PLAN, nodes, spare)

    assert [(view.name, view.state) for view in views] == [("a", "free"), ("b", "busy"), ("c", "broken")]
    assert views[1].busy_chips == 4
    assert views[2].missing == (2,)
    assert describe(PLAN, views) == ("3 slices of v6e 4x4 present: 1 free, 1 busy, 1 broken (c: host 2 of 4 missing)")


@pytest.mark.parametrize(
    ("nodes", "fault"),
    [
        (slice_of("a", (0, 1, 2, 2)), "host 3 of 4 missing"),
        (slice_of("a", (0, 1, 2, 3, 3)), "worker ids [0, 1, 2, 3, 3] where 0-3 are due"),
        ([*slice_of("a", range(3)), node("a", 3, chips=2)], "14 of 16 chips"),
        ([*slice_of("a", range(3)), node("a", 3, alive=False)], "host 3 of 4 missing"),
    ],
)
def test_what_is_wrong_is_said(nodes, fault):
    assert [view.fault for view in survey(PLAN, nodes, free(nodes))] == [fault]


def test_slices_of_other_shapes_are_not_counted():
    nodes = [*slice_of("a", topology="2x8"), *slice_of("b", range(8), topology="4x8", pod="v6e-32")]

    assert survey(PLAN, nodes, free(nodes)) == []
    assert describe(PLAN, []) == "no slice of v6e 4x4 present"


def test_a_slice_whose_head_is_held_is_busy_and_its_job_is_named():
    nodes = [*slice_of("a"), *slice_of("b")]
    for name in ("a-0", "b-0"):
        next(node for node in nodes if node["NodeID"] == name)["Resources"]["TPU-v6e-16-head"] = 1
    spare = free(nodes)
    del spare["b-0"]["TPU-v6e-16-head"]

    views = survey(PLAN, nodes, spare, {"b-0": {"07000000"}})

    assert [(view.name, view.state) for view in views] == [("a", "free"), ("b", "busy")]
    assert describe(PLAN, views) == "2 slices of v6e 4x4 present: 1 free, 1 busy (b: job 07000000)"


def test_one_topology_on_two_machines_is_two_shapes():
    nodes = [
        *slice_of("four", range(2), topology="2x4", pod="v6e-8"),
        node("", 0, topology="2x4", pod="v6e-8", chips=8),
    ]
    nodes[-1]["Resources"]["TPU-v6e-8-head"] = 1
    spare = free(nodes)
    # Somebody who wants the other shape holds the head, which both have.
    del spare["-0"]["TPU-v6e-8-head"]

    for shape, name in (("v6e:2x4@ct6e-standard-4t", "four"), ("v6e:2x4@ct6e-standard-8t", "-0")):
        views = survey(plan(TpuSlice.parse(shape)), nodes, spare)
        assert [(view.name, view.state) for view in views] == [(name, "free")]


def test_single_hosts_are_slices_of_their_own():
    nodes = [node("", 0, topology="2x2", pod="v6e-4"), node("x", 0, topology="2x2", pod="v6e-4") | {"NodeID": "other"}]

    views = survey(plan(TpuSlice.parse("v6e:2x2")), nodes, free(nodes))

    assert [(view.name, view.state) for view in views] == [("-0", "free"), ("other", "free")]


def test_a_single_host_that_was_counted_on_is_broken():
    # The TPU webhook gives a single host that is made anew the next worker id.
    nodes = [node("", 1, topology="2x2", pod="v6e-4")]

    views = survey(plan(TpuSlice.parse("v6e:2x2")), nodes, free(nodes))

    assert [view.fault for view in views] == ["worker id 1 where 0 is due"]


PART = plan(TpuSlice.parse("v6e:2x4/4x4"))
DIVISION = {str(worker): {"ray.io/tpu-subslice-2x4": str(worker // 2)} for worker in range(4)}


def parts(nodes, spare, division=DIVISION):
    return survey(PART, nodes, spare, {}, {"a": division})


def test_parts_are_free_and_busy_by_themselves():
    nodes = slice_of("a")
    spare = free(nodes)
    del spare["a-3"]["TPU"]

    views = parts(nodes, spare)

    assert [(view.name, view.state, view.of, view.workers) for view in views] == [
        ("a/0", "free", "a", (0, 1)),
        ("a/1", "busy", "a", (2, 3)),
    ]
    assert describe(PART, views) == "2 parts 2x4 of v6e 4x4 present: 1 free, 1 busy"


def test_a_part_needs_its_own_hosts_alone():
    nodes = slice_of("a", (0, 1, 3))

    assert [(view.name, view.state, view.fault) for view in parts(nodes, free(nodes))] == [
        ("a/0", "free", ""),
        ("a/1", "broken", "host 2 of 4 missing"),
    ]


def test_who_claims_the_whole_slice_has_its_parts():
    nodes = slice_of("a")
    nodes[0]["Resources"]["TPU-v6e-16-head"] = 1
    spare = free(nodes)
    del spare["a-0"]["TPU-v6e-16-head"]

    assert {view.state for view in parts(nodes, spare)} == {"busy"}


def test_a_slice_that_nobody_has_divided_and_a_torn_division_have_no_parts():
    nodes = slice_of("a")

    assert parts(nodes, free(nodes), {}) == []
    assert [view.name for view in parts(nodes, free(nodes), {"0": {}, "1": {}, **{k: DIVISION[k] for k in "23"}})] == [
        "a/1"
    ]
    assert [view.name for view in parts(nodes, free(nodes), {k: DIVISION[k] for k in "023"})] == ["a/1"]


def hosts(*ids, name="a"):
    return [Host(index, f"n{index}", name, worker) for index, worker in enumerate(ids)]


def test_bundles_may_come_in_any_order():
    verify(PLAN, hosts(2, 0, 3, 1))


@pytest.mark.parametrize(
    "wrong", [hosts(0, 1, 2), hosts(0, 1, 2, 2), hosts(0, 1) + hosts(2, 3, name="b"), hosts(0, 1, 2, 4), []]
)
def test_bundles_that_are_no_whole_slice(wrong):
    with pytest.raises(BrokenSliceError, match="are not v6e 4x4: 4 hosts x 4 chips"):
        verify(PLAN, wrong)


def test_a_part_is_verified_by_its_own_worker_ids():
    verify(PART, hosts(3, 2), (2, 3))
    with pytest.raises(BrokenSliceError, match="are not v6e 2x4 of a 4x4: 2 hosts x 4 chips: a: worker ids"):
        verify(PART, hosts(0, 1), (2, 3))


def test_several_slices_are_verified_each():
    two = plan(TpuSlice.parse("v6e:4x4*2"))

    verify(two, hosts(0, 1, 2, 3) + hosts(3, 2, 1, 0, name="b"))
    with pytest.raises(BrokenSliceError):
        verify(two, hosts(0, 1, 2, 3))


def test_a_clusters_own_slice():
    head = {"NodeID": "head", "Alive": True, "Resources": {"CPU": 2}}

    assert own_slice([head, *slice_of("a")]) == TpuSlice.parse("v6e:4x4")
    assert own_slice([node("a", 0, topology="2x4", pod="v6e-8", chips=8)]).machine_type == "ct6e-standard-8t"
    assert own_slice(slice_of("a", range(2), topology="2x4", pod="v6e-8")).hosts == 2
    with pytest.raises(NoSliceError, match="has no TPU at all"):
        own_slice([head])
    with pytest.raises(NoSliceError, match=r"has v6e:2x2, v6e:4x4"):
        own_slice([*slice_of("a"), node("b", 0, topology="2x2", pod="v6e-4")])


def test_a_wait_says_what_it_sees_on_change_and_each_half_minute(monkeypatch):
    seen, told, now = [[]], [], [0.0]
    monkeypatch.setattr("airflow_raytpu.runtime.slices.look", lambda _: seen[0])
    lookout = Lookout(PLAN, told.append, clock=lambda: now[0])

    for moment in (0.0, 10.0, 20.0, 30.0, 45.0):
        now[0] = moment
        lookout.look()

    assert len(told) == 2
    nodes = slice_of("a", (0, 1, 2))
    seen[0] = survey(PLAN, nodes, free(nodes))
    lookout.look()
    assert told[-1] == "1 slice of v6e 4x4 present: 1 broken (a: host 3 of 4 missing)"
    assert "No whole slice within 600 s (slice_wait): 1 slice of v6e 4x4 present" in str(lookout.too_late(600))
