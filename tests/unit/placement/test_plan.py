"""Plans and clusters: the numbers KubeRay and Ray are given, and what is refused because Ray would hang on it."""

from math import prod

import pytest

from airflow_raytpu import TpuSlice
from airflow_raytpu.model.errors import BatchSizeError, SliceShapeError
from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.groups import CpuGroup, check_fits, plan_cluster
from airflow_raytpu.placement.plan import plan, whole_number

SLICES = [TpuSlice(row.generation.name, row.topology, machine_type=row.machine_type) for row in catalogue.shapes()]


@pytest.mark.parametrize("asked", SLICES, ids=str)
def test_every_row_plans_whole_hosts(asked):
    planned = plan(asked)
    (group,) = plan_cluster([asked]).groups
    assert len(planned.bundles) == planned.workers == group.pods
    assert sum(bundle["TPU"] for bundle in planned.bundles) == planned.devices == planned.chip_hours_per_hour
    # The TPU webhook's own rule for a worker group (1.3.5).
    assert group.num_of_hosts == max(prod(catalogue.dimensions(asked.topology)) // group.tpus, 1)
    assert group.node_selector["cloud.google.com/gke-tpu-topology"] == asked.topology
    assert {prod(mesh) for mesh in planned.meshes.values()} == {planned.devices}
    assert planned.resources == {"TPU": asked.chips, f"TPU-{planned.pod_type}-head": 1}
    assert len(f"{group.name}-00-00") <= 63


@pytest.mark.parametrize("number", [2, 3])
def test_several_slices(number):
    planned = plan(TpuSlice("v6e", "4x4", num_slices=number))
    assert planned.meshes == {"flat": (number, 16), "hosts": (number, 4, 4), "torus": (number, 4, 4)}
    assert planned.resources == {"TPU": 16 * number, "TPU-v6e-16-head": number}
    (group,) = plan_cluster([planned.slice]).groups
    assert (group.replicas, group.num_of_hosts, group.tpus, group.pods) == (number, 4, 4, 4 * number)


def test_a_plan_as_json_names_the_machine():
    said = plan(TpuSlice("v6e", "2x4", chips_per_host=4)).to_dict()
    assert (said["machine_type"], said["hosts"], said["chips"]) == ("ct6e-standard-4t", 2, 8)


def test_cpu_groups_stand_beside_one_shape():
    groups = plan_cluster([TpuSlice("v6e", "4x4"), TpuSlice("v6e", "4x4")], [CpuGroup(name="load", replicas=3)]).groups
    assert [(group.name, group.replicas, group.tpus) for group in groups] == [("v6e-4x4", 2, 4), ("load", 3, 0)]


def test_single_hosts_are_groups_of_their_own():
    groups = plan_cluster([TpuSlice("v6e", "2x2")] * 3).groups
    assert [(group.name, group.replicas) for group in groups] == [(f"v6e-2x2-{number}", 1) for number in range(3)]


@pytest.mark.parametrize(
    ("slices", "says"),
    [
        ([], "without a slice"),
        (["v6e:4x4", "v6e:2x2"], "cannot hold both v6e:4x4 and v6e:2x2"),
        (["v6e:2x4@4t", "v6e:2x4@8t"], "cannot hold both"),
        (["v5p:4x4x16", "v5p:4x8x8"], "cannot hold both"),
    ],
)
def test_a_cluster_has_one_shape(slices, says):
    with pytest.raises(SliceShapeError, match=says) as caught:
        plan_cluster([TpuSlice.parse(text) for text in slices])
    assert caught.value.lever


@pytest.mark.parametrize(
    ("job", "cluster", "says"),
    [
        ("v6e:4x4", "v6e:4x4", ""),
        ("v6e:4x4", "v6e:4x4*2", ""),
        ("v6e:4x4*2", "v6e:4x4", "2 slices on a cluster of 1"),
        ("v6e:2x4/4x4", "v6e:4x4", ""),
        ("v6e:2x4/4x4", "v6e:4x8*2", "asks for v6e:2x4/4x4 on a cluster of v6e:4x8"),
        ("v6e:2x2", "v6e:4x4", "asks for v6e:2x2 on a cluster of v6e:4x4"),
        ("v5e:4x4", "v6e:4x4", "on a cluster of v6e:4x4"),
    ],
)
def test_a_job_asks_for_what_its_cluster_has(job, cluster, says):
    if not says:
        check_fits(TpuSlice.parse(job), TpuSlice.parse(cluster))
        return
    with pytest.raises(SliceShapeError, match=says):
        check_fits(TpuSlice.parse(job), TpuSlice.parse(cluster))


def test_a_single_host_is_told_that_it_could_be_a_part():
    with pytest.raises(SliceShapeError, match=r"or give it v6e:2x2/4x4, or a cluster of v6e:2x2\."):
        check_fits(TpuSlice("v6e", "2x2"), TpuSlice("v6e", "4x4"))


def test_a_part_is_planned_by_its_own_hosts_on_nodes_of_the_whole():
    planned = plan(TpuSlice.parse("v6e:2x4/4x4"))
    assert (planned.workers, planned.devices, planned.mesh) == (2, 8, (8,))
    assert planned.pod_type == "v6e-16"
    assert planned.node_selector["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert planned.resources == {"TPU": 8}
    with pytest.raises(SliceShapeError, match="no cluster is made of parts"):
        plan_cluster([planned.slice])


@pytest.mark.parametrize("value", [8, 8.0, "8"])
def test_a_number_may_come_as_text(value):
    assert whole_number(value, "batch_size") == 8


@pytest.mark.parametrize("value", ["x", None, 1.5, "1.5", float("inf"), float("nan"), [1]])
def test_what_is_no_whole_number(value):
    with pytest.raises(BatchSizeError, match="batch_size is"):
        whole_number(value, "batch_size")
