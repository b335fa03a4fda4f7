"""Where the workers of a training run are, and what they are told of it."""

import dataclasses
from types import SimpleNamespace

import pytest

from airflow_raytpu.model.errors import BrokenSliceError
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime.gang import check_gang, scaling
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import Host

HOSTS = [Host(rank, f"node{rank}", "ab"[rank // 2], rank % 2) for rank in range(4)]


def as_seen(**changes):
    """The same hosts as their own environments say, the first of them changed."""
    return [dataclasses.replace(HOSTS[0], **changes), *HOSTS[1:]]


def test_a_gang_in_its_place_is_left_alone():
    check_gang(HOSTS, as_seen(bundle=7))
    single = Host(0, "node0", "node0", 0)
    for name in ("", "rtc-a-0"):
        check_gang([single], [dataclasses.replace(single, slice_name=name)])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"node_id": "other"}, "rank 0 is host 0 of a on node other and should be host 0 of a on node node0"),
        ({"worker_id": 1}, "rank 0 is host 1 of a on node node0"),
        ({"slice_name": "b"}, "rank 0 is host 0 of b on node node0"),
    ],
)
def test_a_worker_elsewhere_than_its_rank_is_broken(changes, says):
    with pytest.raises(BrokenSliceError, match=says):
        check_gang(HOSTS, as_seen(**changes))


def test_two_slices_the_wrong_way_round_are_broken():
    with pytest.raises(BrokenSliceError, match=r"rank 0 is host 0 of b .* rank 3 is host 1 of a"):
        check_gang(HOSTS, HOSTS[2:] + HOSTS[:2])


def test_a_single_host_with_a_stale_worker_id_is_broken():
    single = Host(0, "node0", "node0", 0)
    with pytest.raises(BrokenSliceError, match="rank 0 is host 1"):
        check_gang([single], [dataclasses.replace(single, worker_id=1)])


@pytest.mark.parametrize("shape", ["v6e:4x4", "v6e:2x2", "v6e:2x4*2@4t", "v6e:2x4/4x4"])
def test_workers_are_asked_for_on_the_held_hosts_alone(shape):
    slice_plan = plan(TpuSlice.parse(shape))
    hosts = tuple(Host(rank, f"node{rank}", "a", rank) for rank in range(slice_plan.workers))
    config = scaling(ReservedSlice(slice_plan, SimpleNamespace(), hosts))
    # What Ray Train itself makes of it (2.60).
    assert config._label_selector_per_worker(len(hosts)) == [{"ray.io/node-id": host.node_id} for host in hosts]
    assert config._resources_per_worker_not_none == {"CPU": 1, "TPU": slice_plan.chips_per_worker}
    assert (config.num_workers, config.placement_strategy) == (len(hosts), "STRICT_SPREAD")
    assert not config.use_tpu
