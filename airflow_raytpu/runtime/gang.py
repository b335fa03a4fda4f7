"""The parts of us that Ray Train runs in its controller: setting the workers up as one gang, and passing reports on."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.train import ScalingConfig, UserCallback
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2.jax.config import JaxConfig, _JaxBackend, _shutdown_jax_distributed
from ray.util.placement_group import remove_placement_group

from airflow_raytpu.model.errors import BrokenSliceError
from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.runtime import mesh, neighbours, relay
from airflow_raytpu.runtime.outbox import finite
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import NODE, Host

_FAREWELL_S = 5.0

log = logging.getLogger(__name__)


def scaling(held: ReservedSlice) -> ScalingConfig:
    """One worker on each host of *held*, and nowhere else, ranked as its hosts are."""
    config = ScalingConfig(
        num_workers=held.plan.workers,
        placement_strategy="STRICT_SPREAD",
        label_selector=[{NODE: host.node_id} for host in held.hosts],
    )
    # With use_tpu Ray would choose a slice by itself, and it takes chips without use_tpu for a mistake. So they are
    # asked for once it has looked (Ray 2.60).
    config.resources_per_worker = dict(held.plan.bundle)
    return config


class HandOver(WorkerGroupCallback):  # type: ignore[misc]
    """Lets the chips of a held slice go at the moment when Ray Train takes them for its workers.

    Ray Train makes a placement group of its own. The slice's head stays held meanwhile, so only somebody who asks for
    chips without a slice can come between; then the workers do not start in time, and the driver looks again.
    """

    def __init__(self, held: ReservedSlice) -> None:
        self._group = held.group

    def before_worker_group_start(self, worker_group_context: Any) -> None:  # noqa: ARG002 - Ray's signature
        remove_placement_group(self._group)


@dataclass(kw_only=True)
class Gang(JaxConfig):  # type: ignore[misc]
    """JaxTrainer's set-up of JAX, with the gang checked before and no long wait behind.

    :param request: remote name of the attempt.
    :param hosts: where the workers are to be, by rank: slice by slice, then by worker id.
    """

    request: str
    plan: SlicePlan
    hosts: tuple[Host, ...]

    @property
    def backend_cls(self) -> type[_JaxBackend]:
        return _GangBackend


class _GangBackend(_JaxBackend):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: Gang) -> None:
        check_gang(backend_config.hosts, worker_group.execute(_identify))
        addresses = worker_group.execute(ray.util.get_node_ip_address)
        told = neighbours.environments(backend_config.plan, addresses)
        ray.get([worker_group.execute_single_async(rank, _learn, each) for rank, each in enumerate(told)])
        super().on_start(worker_group, backend_config)
        relay.publish(backend_config.request, "mesh", {"at": time.time()})

    def on_shutdown(self, worker_group: Any, backend_config: Gang) -> None:  # noqa: ARG002 - Ray's signature
        status = worker_group.get_latest_poll_status()
        if status is not None and status.errors:
            # The others hang in a collective, and a farewell among all would only hold the error back.
            return
        farewells = worker_group.execute_async(_shutdown_jax_distributed)
        ray.wait(farewells, num_returns=len(farewells), timeout=_FAREWELL_S)


def check_gang(due: Sequence[Host], seen: Sequence[Host]) -> None:
    """Prove that each rank is on its host of the held slices, by what the host's own environment says.

    :param due: the hosts by rank, by the labels of their nodes.
    :param seen: where the workers are, by rank.
    :raises BrokenSliceError: one is elsewhere, or its host says another slice or worker id than its label.
    """
    wrong = [
        f"rank {rank} is {_short(is_)} and should be {_short(should)}"
        for rank, (should, is_) in enumerate(zip(due, seen, strict=True))
        if (is_.node_id, is_.worker_id) != (should.node_id, should.worker_id)
        # A single host is its own slice, whatever name it has.
        or should.slice_name not in (is_.slice_name, should.node_id)
    ]
    if wrong:
        raise BrokenSliceError(
            f"The workers are not where their slices are: {'; '.join(wrong)}.",
            "Look at the TPU_NAME and TPU_WORKER_ID of these hosts; a slice that lies must be made anew.",
        )


def _short(host: Host) -> str:
    return f"host {host.worker_id} of {host.slice_name or 'no slice'} on node {host.node_id[:8]}"


def _learn(environment: dict[str, str]) -> None:
    os.environ.update(environment)


def _identify() -> Host:
    """Where this worker is; on the way, its environment is made fit for JAX."""
    mesh.prepare()
    node_id = ray.get_runtime_context().get_node_id()
    return Host(0, node_id, os.environ.get("TPU_NAME", ""), int(os.environ.get("TPU_WORKER_ID", "0")))


class ReportRelay(UserCallback):  # type: ignore[misc]
    """Progress of a loop that only calls ``ray.train.report``: the reports themselves."""

    def __init__(self, request: str) -> None:
        self._request = request
        self._count = 0

    def after_report(self, metrics: list[dict[str, Any]], **_: Any) -> None:
        self._count += 1
        first = metrics[0]
        step = first.get("step", first.get("training_iteration"))
        news = {"done": int(step) if isinstance(step, (int, float)) else self._count, "at": time.time()}
        relay.publish(self._request, "report", {**news, "metrics": finite(first)})
