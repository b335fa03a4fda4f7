"""The command that makes a node pool, by shape and provisioning."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.doctor import nodes
from airflow_raytpu.model.kuberay import KubeRayOptions, Provisioning
from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.topology import TpuSlice


def flags(tpu_slice: TpuSlice, **options) -> list[str]:
    command = nodes.command(tpu_slice, KubeRayOptions.from_dict(options))
    assert all(len(line) <= 76 for line in command.split("\n"))
    return command.replace("\\\n", "").split()


def test_a_pool_of_several_hosts():
    assert flags(TpuSlice("v6e", "4x4")) == [
        *("gcloud", "container", "node-pools", "create", "tpu-v6e-4x4"),
        *("--cluster=CLUSTER", "--location=LOCATION", "--node-locations=ZONE", "--machine-type=ct6e-standard-4t"),
        *("--tpu-topology=4x4", "--num-nodes=4", "--workload-metadata=GKE_METADATA"),
    ]


@given(st.sampled_from(catalogue.shapes()))
def test_a_single_host_states_no_topology_and_every_pool_has_the_hosts_of_its_slice(row):
    found = flags(TpuSlice(row.generation.name, row.topology, machine_type=row.machine_type))
    topology = [flag for flag in found if flag.startswith(("--tpu-topology", "--placement-policy"))]
    assert len(topology) == (1 if row.multi_host else 0)
    assert f"--num-nodes={row.hosts}" in found
    assert f"--machine-type={row.machine_type}" in found


def test_ironwood_takes_its_topology_from_a_policy():
    assert "--placement-policy=POLICY" in flags(TpuSlice("tpu7x", "2x2x2"))


@pytest.mark.parametrize(
    ("options", "flag", "count"),
    [
        ({"provisioning": "spot"}, "--spot", "--num-nodes=4"),
        ({"provisioning": "flex-start", "run_limit_s": 3600}, "--flex-start", "--max-nodes=4"),
        (
            {"provisioning": "queued", "queue": "q", "run_limit_s": 3600},
            "--enable-queued-provisioning",
            "--max-nodes=4",
        ),
        ({"provisioning": "reservation", "reservation": "r"}, "--reservation=r", "--num-nodes=4"),
    ],
)
def test_ways_to_come_by_nodes(options, flag, count):
    found = flags(TpuSlice("v6e", "4x4"), **options)
    assert {flag, count} <= set(found)
    # GKE wants both where requests are queued.
    assert ("--flex-start" in found) == (options["provisioning"] in {"flex-start", "queued"})


def test_every_way_is_known():
    assert {each.value for each in Provisioning} == {"on-demand", "spot", "flex-start", "queued", "reservation"}


def test_the_guide_shows_these_commands():
    guide = (Path(__file__).parents[3] / "docs" / "gke.md").read_text().replace("\\\n", " ")
    shown = [line.split() for line in guide.splitlines() if line.startswith("gcloud container node-pools create")]
    wanted = [nodes.command(TpuSlice("v6e", topology), KubeRayOptions()) for topology in ("4x4", "2x2")]
    assert shown[:2] == [each.replace("\\\n", "").split() for each in wanted]
