"""The picture of slices from rows as Ray 2.60.0 gave them, table by table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_raytpu.backends.rayslices import Listing, slices, unseen
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.slices import SliceCondition, SliceState
from airflow_raytpu.placement.topology import TpuSlice

V6E = TpuSlice.parse("v6e:4x4")
HEAD = {"node_id": "head", "state": "ALIVE", "labels": {}, "resources_total": {"CPU": 2.0}}
TRAIN = Identity(deployment="d", dag_id="digits", task_id="train", run_id="a|run", attempt=2)
JOBS = [
    {
        "type": "SUBMISSION",
        "job_id": "02000000",
        "submission_id": "digits-train-x",
        "start_time": 70_000,
        "metadata": {"raytpu.owner": TRAIN.owner()},
    },
    {"type": "DRIVER", "job_id": "01000000", "submission_id": None, "start_time": 50_000, "metadata": {}},
    {"type": "SUBMISSION", "job_id": None, "submission_id": "waits", "start_time": None, "metadata": None},
]


def node(name: str, worker: int, tpu_slice: TpuSlice = V6E, **changes) -> dict:
    labels = {
        "ray.io/tpu-slice-name": name,
        "ray.io/tpu-worker-id": str(worker),
        "ray.io/tpu-topology": tpu_slice.topology,
        "ray.io/accelerator-type": tpu_slice.shape.generation.ray_type,
    }
    return {
        "node_id": f"{name}/{worker}",
        "node_ip": f"10.0.0.{worker}",
        "state": "ALIVE",
        "labels": labels,
        "resources_total": {"CPU": 4.0, "TPU": float(tpu_slice.chips_per_host)},
        "start_time_ms": 10_000 + worker,
        "end_time_ms": 0,
        **changes,
    }


def whole(name: str = "a", tpu_slice: TpuSlice = V6E) -> list[dict]:
    return [node(name, worker, tpu_slice) for worker in range(tpu_slice.hosts)]


def bundle(at: str, **resources: float) -> dict:
    return {"unit_resources": resources or {"CPU": 1.0, "TPU": 4.0}, "node_id": at}


def group(*bundles: dict, job: str = "02000000", state: str = "CREATED") -> dict:
    stats = {"creation_request_received_ns": "80000000000", "end_to_end_creation_latency_us": "500000"}
    return {"state": state, "creator_job_id": job, "bundles": list(bundles), "stats": stats}


def work(at: str, job: str = "02000000", resources: dict | None = None, **changes) -> dict:
    """An actor or a task."""
    required = {"TPU": 4.0} if resources is None else resources
    return {"node_id": at, "job_id": job, "required_resources": required, "placement_group_id": None, **changes}


def one(listing: Listing) -> SliceState:
    (found,) = slices("shared", listing)
    return found


IDLE = Listing(nodes=[HEAD, *whole()], jobs=JOBS)


def test_a_whole_slice_that_nobody_holds_is_idle_since_its_last_host_came_up():
    assert one(IDLE) == SliceState(
        cluster="shared",
        name="a",
        shape="v6e:4x4",
        hosts=4,
        present=(0, 1, 2, 3),
        condition=SliceCondition.IDLE,
        since=10.003,
    )


@pytest.mark.parametrize(
    ("held", "since"),
    [
        pytest.param({"groups": [group(*(bundle(f"a/{worker}") for worker in range(4)))]}, 80.5, id="group"),
        pytest.param({"groups": [group(bundle("a/3"))]}, 80.5, id="one host of it"),
        pytest.param({"groups": [group(bundle("a/0", **{"TPU-v6e-16-head": 1.0}))]}, 80.5, id="head"),
        pytest.param({"groups": [group(bundle("a/1"), bundle(""), state="RESCHEDULING")]}, 80.5, id="what is left"),
        pytest.param({"actors": [work("a/2")]}, 70.0, id="actor"),
        pytest.param({"tasks": [work("a/2", start_time_ms=90_000.0)]}, 90.0, id="task"),
        pytest.param({"tasks": [work("a/2", resources={"TPU": 0.5}, start_time_ms=90_000.0)]}, 90.0, id="half a chip"),
    ],
)
def test_whoever_holds_chips_or_the_head_makes_it_busy(held, since):
    found = one(replace(IDLE, **held))
    assert (found.condition, found.since) == (SliceCondition.BUSY, since)
    (holder,) = found.holders
    assert (holder.job, holder.owner) == ("digits-train-x", TRAIN)


@pytest.mark.parametrize(
    "held",
    [
        pytest.param({"groups": [group(bundle("a/0"), state="PENDING")]}, id="a group that waits"),
        pytest.param({"groups": [group(bundle("a/0"), state="REMOVED")]}, id="a group that is gone"),
        pytest.param({"groups": [group(bundle("a/0", CPU=1.0))]}, id="a group of CPUs"),
        pytest.param({"groups": [group(bundle("head"))]}, id="a group elsewhere"),
        pytest.param({"actors": [work("a/0", resources={"CPU": 1.0})]}, id="an actor on CPUs"),
        pytest.param({"actors": [work("a/0", resources={"TPU": 0.0})]}, id="an actor with no chips"),
        pytest.param({"actors": [work("a/0", placement_group_id="removed")]}, id="an actor of a group"),
        pytest.param({"tasks": [work("a/0", resources={"accelerator_type:TPU-V6E": 0.001})]}, id="a label of old"),
    ],
)
def test_what_holds_no_chips_leaves_it_idle(held):
    assert one(replace(IDLE, **held)).condition is SliceCondition.IDLE


def test_two_jobs_on_one_slice_are_both_named_and_the_first_to_come_counts():
    found = one(replace(IDLE, actors=[work("a/0", job="01000000")], groups=[group(bundle("a/1"))]))
    assert [(holder.job, holder.owner) for holder in found.holders] == [("digits-train-x", TRAIN), ("01000000", None)]
    assert found.since == 50.0


def test_a_job_that_is_not_listed_holds_all_the_same():
    found = one(replace(IDLE, actors=[work("a/0", job="99000000")], jobs=[]))
    assert (found.condition, found.holders[0].job, found.since) == (SliceCondition.BUSY, "99000000", 0.0)


def test_two_jobs_on_two_slices_are_told_apart():
    listing = Listing(
        nodes=[*whole("a"), *whole("b")],
        groups=[group(bundle("a/0")), group(bundle("b/0"), job="01000000")],
        jobs=JOBS,
    )
    assert [(each.name, each.holders[0].job) for each in slices("c", listing)] == [
        ("a", "digits-train-x"),
        ("b", "01000000"),
    ]


DEAD = {"state": "DEAD", "end_time_ms": 60_000}


@pytest.mark.parametrize(
    ("nodes", "present", "fault", "since"),
    [
        ([*whole()[:2], node("a", 2, **DEAD), node("a", 3)], (0, 1, 3), "host 2 of 4 missing", 60.0),
        (whole()[:3], (0, 1, 2), "host 3 of 4 missing", 0.0),
        ([node("a", 3)], (3,), "hosts 0, 1, 2 of 4 missing", 0.0),
        ([*whole(), node("a", 0)], (0, 0, 1, 2, 3), "worker ids 0, 0, 1, 2, 3 where 0-3 are due", 0.0),
        (
            [*whole()[:3], node("a", 3, resources_total={"TPU": 3.0})],
            (0, 1, 2, 3),
            "host 3 has 3 chips where 4 are due",
            0.0,
        ),
    ],
)
def test_what_is_not_whole_is_broken_and_says_why(nodes, present, fault, since):
    found = one(Listing(nodes=nodes))
    assert (found.condition, found.present, found.fault) == (SliceCondition.BROKEN, present, fault)
    assert (found.shape, found.hosts, found.since) == ("v6e:4x4", 4, since)


def test_a_single_host_that_was_counted_on_is_broken():
    found = one(Listing(nodes=[node("a", 1, TpuSlice.parse("v6e:2x2"))]))
    assert (found.condition, found.fault) == (SliceCondition.BROKEN, "worker id 1 where 0 is due")


def test_a_host_that_came_back_makes_it_whole():
    found = one(Listing(nodes=[*whole(), node("a", 2, **DEAD)]))
    assert (found.condition, found.fault) == (SliceCondition.IDLE, "")


def test_a_broken_slice_that_is_held_is_broken_and_says_by_whom():
    found = one(replace(IDLE, nodes=whole()[:3], groups=[group(bundle("a/0"))]))
    assert (found.condition, str(found.holders[0])) == (SliceCondition.BROKEN, "digits/train")


def test_a_slice_without_a_living_host_is_gone_unless_it_is_expected():
    nodes = [node("a", worker, **DEAD) for worker in range(4)]
    assert slices("c", Listing(nodes=nodes)) == []
    (found,) = slices("c", Listing(nodes=nodes), {"a": V6E})
    assert (found.fault, found.present, found.since) == ("hosts 0, 1, 2, 3 of 4 missing", (), 60.0)


def test_an_expected_slice_that_never_came_is_broken():
    found = slices("c", IDLE, {"a": V6E, "b": TpuSlice.parse("v6e:2x2")})
    assert [(each.name, each.condition.value, each.shape) for each in found] == [
        ("a", "idle", "v6e:4x4"),
        ("b", "broken", "v6e:2x2"),
    ]


@pytest.mark.parametrize(
    "text", ["v6e:2x2", "v6e:2x4@ct6e-standard-8t", "v6e:2x4@ct6e-standard-4t", "v5e:1x1", "v4:2x2x2", "tpu7x:2x2x2"]
)
def test_every_shape_is_read_from_labels_and_chips(text):
    tpu_slice = TpuSlice.parse(text)
    found = one(Listing(nodes=whole("a", tpu_slice)))
    assert (found.shape, found.condition) == (text, SliceCondition.IDLE)


def test_mixed_shapes_are_pictures_of_their_own():
    eight, four = (TpuSlice.parse(f"v6e:2x4@ct6e-standard-{chips}t") for chips in (8, 4))
    found = slices("c", Listing(nodes=[*whole("a", eight), *whole("b", four), *whole("c")]))
    assert [each.shape for each in found] == [str(eight), str(four), "v6e:4x4"]


def test_single_hosts_without_a_slice_name_are_slices_by_themselves():
    hosts = [node("", 0, TpuSlice.parse("v6e:2x2"), node_id=ip, node_ip=ip) for ip in ("10.0.0.1", "10.0.0.2")]
    for host in hosts:
        del host["labels"]["ray.io/tpu-slice-name"]
    found = slices("c", Listing(nodes=hosts, actors=[work("10.0.0.2")]))
    assert [(each.name, each.condition.value) for each in found] == [("10.0.0.1", "idle"), ("10.0.0.2", "busy")]


@pytest.mark.parametrize(
    ("labels", "resources", "shape"),
    [
        ({"ray.io/accelerator-type": "TPU-V9"}, {"TPU": 4.0}, "TPU-V9 4x4"),
        ({"ray.io/tpu-topology": "4x5"}, {"TPU": 4.0}, "TPU-V6E 4x5"),
        ({"ray.io/accelerator-type": None}, {"TPU": 4.0}, "None 4x4"),
        ({}, {"TPU": 5.0}, "TPU-V6E 4x4"),
        ({}, {}, "TPU-V6E 4x4"),
        ({}, None, "TPU-V6E 4x4"),
    ],
)
def test_what_is_no_known_shape_is_broken_in_its_own_words(labels, resources, shape):
    odd = node("a", 0, resources_total=resources)
    odd["labels"].update(labels)
    found = one(Listing(nodes=[odd]))
    assert (found.shape, found.condition, found.fault) == (shape, SliceCondition.BROKEN, f"no known shape: {shape}")


def test_fields_that_are_missing_or_new_do_no_harm():
    bare = {"node_id": "x"}
    odd = [{}, {"bundles": None, "moons": 2}, {"bundles": [{}], "stats": None, "state": "ORBITING"}]
    found = one(
        Listing(nodes=[bare, *whole()], groups=odd, actors=[{}], tasks=[{"required_resources": None}], jobs=[{}])
    )
    assert found.condition is SliceCondition.IDLE


def test_a_state_of_a_group_that_is_not_known_holds():
    assert one(replace(IDLE, groups=[group(bundle("a/0"), state="ORBITING")])).condition is SliceCondition.BUSY


def test_what_cannot_be_asked_is_shown_as_it_is_due():
    (found,) = unseen("c", {"a": V6E}, SliceCondition.BROKEN, "its Ray does not answer")
    assert (found.hosts, found.present, found.fault) == (4, (), "its Ray does not answer")
