"""What Ray Train makes of workers on held hosts, on the installed Ray: an upgrade shows here what changed."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ray.train.v2.jax", reason="needs the extra 'local' (Ray)")

from ray.train.v2._internal.execution.worker_group import worker_group as ray_group
from ray.train.v2._internal.execution.worker_group.state import WorkerGroupContext

from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime.gang import HandOver, scaling
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import Host

HOSTS = tuple(Host(rank, f"node{rank}", "ab"[rank // 2], rank % 2) for rank in range(4))
HELD = ReservedSlice(plan(TpuSlice.parse("v6e:2x4*2@4t")), "the held group", HOSTS)


@pytest.fixture
def asked(monkeypatch):
    """What Ray Train asks of Ray, in order."""
    calls = []
    monkeypatch.setattr(ray_group, "placement_group", lambda **asked: calls.append(asked))
    monkeypatch.setattr(ray_group, "SlicePlacementGroup", lambda **_: pytest.fail("Ray chose a slice by itself"))
    monkeypatch.setattr("airflow_raytpu.runtime.gang.remove_placement_group", calls.append)
    return calls


def context(config):
    return WorkerGroupContext(
        run_attempt_id="1",
        train_fn_ref=None,
        num_workers=config.num_workers,
        resources_per_worker=config._resources_per_worker_not_none,
        placement_strategy=config.placement_strategy,
        label_selector=config._label_selector_per_worker(config.num_workers),
    )


def test_the_held_hosts_are_let_go_and_then_asked_for_one_by_one(asked):
    class Asked(Exception):
        pass

    config = scaling(HELD)
    group = ray_group.WorkerGroup.__new__(ray_group.WorkerGroup)
    group._callbacks = [HandOver(HELD)]
    group._worker_group_state = None
    group._worker_group_context = context(config)
    group._train_run_context = SimpleNamespace(scaling_config=config)
    group._worker_group_start_timeout_s = 20.0

    class Handle:
        def __init__(self, _):
            raise Asked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_group.WorkerGroup, "_check_cluster_resources_and_raise_if_insufficient", lambda *_: None)
        patch.setattr(ray_group, "DefaultPlacementGroupHandle", Handle)
        with pytest.raises(Asked):
            group._start_impl(None)

    assert asked == [
        "the held group",
        {
            "bundles": [{"CPU": 1, "TPU": 4}] * 4,
            "strategy": "STRICT_SPREAD",
            "bundle_label_selector": [{"ray.io/node-id": f"node{rank}"} for rank in range(4)],
        },
    ]


def test_ranks_follow_the_names_of_slices_and_within_one_the_order_asked_for(monkeypatch):
    names = iter("bbaa")
    monkeypatch.setattr(ray_group.ray, "get", list)
    workers = [
        SimpleNamespace(
            number=number,
            resources={"CPU": 1, "TPU": 4},
            metadata=SimpleNamespace(node_ip=f"10.0.0.{number}"),
            execute_async=lambda _: next(names),
            distributed_context=None,
        )
        for number in range(4)
    ]

    ranked = ray_group.WorkerGroup._assign_worker_ranks(workers)

    assert [worker.number for worker in ranked] == [2, 3, 0, 1]
    assert [worker.distributed_context.world_rank for worker in ranked] == [0, 1, 2, 3]


def test_a_trainer_takes_it():
    from ray.train import FailureConfig, RunConfig
    from ray.train.v2.jax import JaxTrainer

    from airflow_raytpu.runtime.gang import Gang

    trainer = JaxTrainer(
        print,
        jax_config=Gang(use_tpu=True, request="r", plan=HELD.plan, hosts=HOSTS),
        scaling_config=scaling(HELD),
        run_config=RunConfig(callbacks=[HandOver(HELD)], failure_config=FailureConfig(controller_failure_limit=0)),
    )
    assert trainer.scaling_config.resources_per_worker == {"CPU": 1, "TPU": 4}
