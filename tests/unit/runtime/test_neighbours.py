"""What libtpu is told: nothing of a whole slice, which slice of several, a torus of its own in a part."""

import pytest

from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime.neighbours import environments


def told(shape):
    slice_plan = plan(TpuSlice.parse(shape))
    return environments(slice_plan, [f"10.0.0.{rank}" for rank in range(slice_plan.workers)])


@pytest.mark.parametrize(("shape", "hosts"), [("v6e:4x4", 4), ("v6e:2x2", 1)])
def test_the_hosts_of_one_whole_slice_know_it_all(shape, hosts):
    assert told(shape) == [{}] * hosts


def test_each_rank_is_told_the_slice_it_is_on():
    found = told("v6e:2x4*2@4t")
    assert [each["MEGASCALE_SLICE_ID"] for each in found] == ["0", "0", "1", "1"]
    assert {each["MEGASCALE_NUM_SLICES"] for each in found} == {"2"}
    assert {each["MEGASCALE_COORDINATOR_ADDRESS"] for each in found} == {"10.0.0.0"}


@pytest.mark.parametrize(
    ("shape", "bounds"), [("v6e:2x2/4x4", "1,1,1"), ("v6e:2x4/4x4", "2,1,1"), ("v4:2x2x4/4x4x4", "4,1,1")]
)
def test_the_hosts_of_a_part_are_a_torus_of_their_own(shape, bounds):
    found = told(shape)
    assert {each["TPU_PROCESS_BOUNDS"] for each in found} == {bounds}
    assert [each["CLOUD_TPU_TASK_ID"] for each in found] == [str(rank) for rank in range(len(found))]
    assert len(found[0]["TPU_PROCESS_ADDRESSES"].split(",")) == len(found)
