"""The proof of whole slices, table by table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_raytpu.backends.simulated.proof import RayNode, SliceShould, faults
from airflow_raytpu.placement.topology import TpuSlice

V6E = TpuSlice.parse("v6e:4x4")
HEAD = RayNode(ip="127.16.0.1", resources={"CPU": 2.0, "node:__internal_head__": 1.0})


def host(slice_name: str, worker: int, tpu_slice: TpuSlice = V6E) -> RayNode:
    should = SliceShould.of(slice_name, tpu_slice)
    labels = {**should.labels, "ray.io/tpu-slice-name": slice_name, "ray.io/tpu-worker-id": str(worker)}
    resources = {"TPU": float(tpu_slice.chips_per_host), slice_name: 1.0}
    if worker == 0:
        resources[should.head_resource] = 1.0
    return RayNode(ip=f"127.16.0.{worker + 10}", labels=labels, resources=resources)


def whole(slice_name: str = "a", tpu_slice: TpuSlice = V6E) -> list[RayNode]:
    return [host(slice_name, worker, tpu_slice) for worker in range(tpu_slice.hosts)]


@pytest.mark.parametrize(
    "text",
    [
        "v6e:4x4",
        "v6e:2x2",
        "v6e:2x4@ct6e-standard-8t",
        "v6e:2x4@ct6e-standard-4t",
        "v5e:4x8",
        "v4:2x2x2",
        "tpu7x:2x2x2",
    ],
)
def test_a_whole_slice_is_proven(text: str) -> None:
    tpu_slice = TpuSlice.parse(text)
    assert faults([HEAD, *whole("a", tpu_slice)], [SliceShould.of("a", tpu_slice)]) == []


def test_what_rays_own_words_are() -> None:
    should = SliceShould.of("a", V6E)
    assert should.head_resource == "TPU-v6e-16-head"
    assert should.labels == {
        "ray.io/tpu-topology": "4x4",
        "ray.io/tpu-pod-type": "v6e-16",
        "ray.io/accelerator-type": "TPU-V6E",
    }


def test_two_slices_are_proven_apart() -> None:
    both = [SliceShould.of(name, V6E) for name in ("a", "b")]
    assert faults([HEAD, *whole("a"), *whole("b")], both) == []
    found = faults([HEAD, *whole("a"), *whole("b")[:3]], both)
    assert found == ["slice b has worker ids 0, 1, 2 where 0, 1, 2, 3 are due"]


def relabelled(label: str, value: str) -> Callable[[list[RayNode]], list[RayNode]]:
    return lambda nodes: [replace(nodes[0], labels={**nodes[0].labels, label: value}), *nodes[1:]]


def with_resource(worker: int, resource: str, amount: float) -> Callable[[list[RayNode]], list[RayNode]]:
    def change(nodes: list[RayNode]) -> list[RayNode]:
        nodes[worker] = replace(nodes[worker], resources={**nodes[worker].resources, resource: amount})
        return nodes

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda nodes: [], "has worker ids none where 0, 1, 2, 3 are due"),
        (lambda nodes: nodes[:-1], "has worker ids 0, 1, 2 where"),
        (lambda nodes: [*nodes, nodes[0]], "has worker ids 0, 0, 1, 2, 3 where"),
        (lambda nodes: [*nodes, host("a", 4)], "has worker ids 0, 1, 2, 3, 4 where"),
        (lambda nodes: [replace(nodes[0], alive=False), *nodes[1:]], "has worker ids 1, 2, 3 where"),
        (relabelled("ray.io/tpu-worker-id", "7"), "has worker ids 1, 2, 3, 7 where"),
        (relabelled("ray.io/tpu-slice-name", "b"), "has worker ids 1, 2, 3 where"),
        (relabelled("ray.io/tpu-topology", "2x2"), "says ray.io/tpu-topology is 2x2 where 4x4 is due"),
        (relabelled("ray.io/tpu-pod-type", "v6e-4"), "says ray.io/tpu-pod-type is v6e-4 where v6e-16 is due"),
        (relabelled("ray.io/accelerator-type", "TPU-V4"), "is TPU-V4 where TPU-V6E is due"),
        (with_resource(2, "TPU", 3.0), "host 2 of slice a has 3 TPU where 4 is due"),
        (with_resource(2, "TPU-v6e-16-head", 1.0), "host 2 of slice a has 1 TPU-v6e-16-head where 0 is due"),
        (with_resource(0, "TPU-v6e-16-head", 0.0), "host 0 of slice a has 0 TPU-v6e-16-head where 1 is due"),
    ],
)
def test_each_lack_is_named(change: Callable[[list[RayNode]], list[RayNode]], says: str) -> None:
    (found,) = faults([HEAD, *change(whole())], [SliceShould.of("a", V6E)])
    assert says in found


def test_eleven_hosts_are_told_apart_by_number() -> None:
    large = TpuSlice.parse("v6e:8x8")
    assert faults(whole("a", large), [SliceShould.of("a", large)]) == []
