"""What Ray's own autoscaler reads out of our objects: whether it would bring up the right group."""

import pytest

from airflow_raytpu.backends.kuberay.manifest import manifest
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.kuberay import CpuGroup, KubeRayOptions
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.placement import catalogue

config = pytest.importorskip(
    "ray.autoscaler._private.kuberay.autoscaling_config", reason="needs the extra 'local' (Ray)"
)

ROWS = catalogue.shapes()
OPTIONS = KubeRayOptions(
    image="example/ray:2", autoscaling=True, min_slices=0, max_slices=3, cpu_groups=(CpuGroup(name="load", cpus=8),)
)


def node_types(tpu_slice):
    request = RayRequest(
        identity=Identity(deployment="d", dag_id="digits", task_id="cluster", run_id="r"),
        kind=Kind.CLUSTER,
        slice=tpu_slice,
        storage="gs://bucket/x",
        limits=Deadlines().since(0),
    )
    return config._derive_autoscaling_config_from_ray_cr(manifest(request, OPTIONS, 0.0))["available_node_types"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.generation.name}-{row.topology}-{row.chips_per_host}")
def test_a_group_has_what_a_slice_is_asked_for_by(row):
    found = node_types(f"{row.generation.name}:{row.topology}@{row.machine_type}")
    assert found.pop("load")["resources"]["CPU"] == 8
    assert found.pop("headgroup")["resources"]["CPU"] == 0
    assert len(found) == (3 if row.hosts == 1 else 1)
    for node in found.values():
        assert node["resources"]["TPU"] == row.chips_per_host
        assert node["resources"]["CPU"] >= 1
        assert node["resources"][row.head_resource] == 1
        assert (node["min_workers"], node["max_workers"]) == (0, 3 * row.hosts if row.hosts > 1 else 1)
        # Of hosts that are not up yet it knows no other labels.
        assert node["labels"] == {"ray.io/tpu-pod-type": row.pod_type, "ray.io/tpu-topology": row.topology}
