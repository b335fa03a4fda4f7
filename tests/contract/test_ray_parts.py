"""How Ray divides slices, held against the installed Ray: an upgrade shows here what changed."""

import inspect

import pytest

from airflow_raytpu.placement import parts

tpu = pytest.importorskip("ray._private.accelerators.tpu", reason="needs the extra 'local' (Ray)")
GRIDS = {**tpu._VALID_TOPOLOGY_WORKER_DIMS_2D, **tpu._VALID_TOPOLOGY_WORKER_DIMS_3D}


def test_ray_divides_what_we_say_it_does():
    assert set(parts.DIVISIBLE) == set(GRIDS)
    assert {topology: parts.hosts_grid(topology) for topology in GRIDS} == GRIDS


def test_hosts_in_order_divide_into_equal_parts():
    from airflow_raytpu.runtime.division import in_order

    of = [labels["ray.io/tpu-subslice-2x4"] for _, labels in sorted(in_order("4x4").items())]
    assert of == ["0", "0", "1", "1"]


def test_ray_keeps_a_division_where_we_look_for_it():
    from ray.util.tpu import _TPU_SUBSLICE_KV_NAMESPACE, _discover_and_persist_subslices, _get_subslice_kv_key

    assert (_TPU_SUBSLICE_KV_NAMESPACE, _get_subslice_kv_key("a")) == ("tpu_subslice", b"tpu_subslice/a")
    assert list(inspect.signature(_discover_and_persist_subslices).parameters) == [
        "parent_topology",
        "accelerator_version",
        "chips_per_vm",
        "head_reservation_timeout_s",
        "target_slice_name",
    ]
    source = inspect.getsource(inspect.getmodule(_discover_and_persist_subslices))
    assert "json.dumps(subslice_labels_by_worker_id)" in source
    assert "libtpu is required for TPU subslice discovery" in source
