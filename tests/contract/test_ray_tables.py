"""The catalogue's facts about Ray, row by row against the installed Ray: an upgrade shows here what changed."""

import pytest

from airflow_raytpu.placement import catalogue

tpu = pytest.importorskip("ray._private.accelerators.tpu", reason="needs the extra 'local' (Ray)")

ROWS = catalogue.shapes()
ids = [f"{row.generation.name}-{row.topology}-{row.machine_type}" for row in ROWS]


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_ray_agrees_with_the_row(row):
    version = row.generation.ray_version
    assert tpu.TPUAcceleratorManager.is_valid_tpu_accelerator_topology(version, row.topology) == row.ray_knows
    assert tpu.get_chips_per_host(row.topology, version) == row.ray_chips_per_host
    assert tpu.infer_tpu_pod_type_from_topology(row.topology, row.generation.ray_type) == row.pod_type
    assert f"TPU-{row.pod_type}-head" == row.head_resource


def test_68_rows_need_a_way_round_ray():
    wrong = [row for row in ROWS if not row.ray_knows or row.ray_chips_per_host != row.chips_per_host]
    assert len(wrong) == 68
