"""A serving replica over a whole slice: what Serve is told."""

from __future__ import annotations

import json

import pytest

from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import replicas


def pinned(text: str) -> dict:
    return replicas.pinned(plan(TpuSlice.parse(text)), "name")


def test_a_replica_of_several_hosts_has_every_host_and_the_head():
    told = pinned("v6e:4x4")
    assert json.loads(json.dumps(told)) == told
    assert told["num_replicas"] == 1
    assert sum(bundle["TPU"] for bundle in told["placement_group_bundles"]) == 16
    assert told["placement_group_bundles"][0]["TPU-v6e-16-head"] == 1
    labels = told["placement_group_bundle_label_selector"]
    assert labels[0] == {"ray.io/tpu-slice-name": "name", "ray.io/tpu-worker-id": "0"}
    assert labels[1:] == [{"ray.io/tpu-slice-name": "name"}] * 3
    # The replica itself must fit into the first bundle.
    assert told["ray_actor_options"]["resources"]["TPU"] == told["placement_group_bundles"][0]["TPU"] == 4


def test_a_single_host_is_pinned_by_its_node():
    told = pinned("v6e:2x2")
    assert told["placement_group_bundle_label_selector"] == [{"ray.io/node-id": "name"}]
    assert told["placement_group_bundles"] == [{"CPU": 1, "TPU": 4}]


def test_options_are_those_of_the_builder_that_runs():
    with pytest.raises(RequestError, match="no slice to itself"):
        replicas.options()
    with replicas.given({"num_replicas": 1}):
        assert replicas.options() == {"num_replicas": 1}
    with replicas.given(None), pytest.raises(RequestError):
        replicas.options()
