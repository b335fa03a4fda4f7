"""The parts of us that Ray Train runs in its controller: setting the workers up as one gang, and passing reports on."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.train import UserCallback
from ray.train.v2.jax.config import JaxConfig, _JaxBackend, _shutdown_jax_distributed

from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.runtime import mesh, relay
from airflow_raytpu.runtime.outbox import finite
from airflow_raytpu.runtime.slices import Host, verify

_FAREWELL_S = 5.0

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Gang(JaxConfig):  # type: ignore[misc]
    """JaxTrainer's set-up of JAX, with the gang checked before and no long wait behind.

    :param request: remote name of the attempt.
    """

    request: str
    plan: SlicePlan

    @property
    def backend_cls(self) -> type[_JaxBackend]:
        return _GangBackend


class _GangBackend(_JaxBackend):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: Gang) -> None:
        held_at = time.time()
        hosts = worker_group.execute(_identify)
        relay.publish(
            backend_config.request, "gang", {"slice_at": held_at, "slices": sorted({host.slice_name for host in hosts})}
        )
        check_gang(backend_config.plan, hosts)
        super().on_start(worker_group, backend_config)
        relay.publish(backend_config.request, "mesh", {"at": time.time()})

    def on_shutdown(self, worker_group: Any, backend_config: Gang) -> None:  # noqa: ARG002 - Ray's signature
        status = worker_group.get_latest_poll_status()
        if status is not None and status.errors:
            # The others hang in a collective, and a farewell among all would only hold the error back.
            return
        farewells = worker_group.execute_async(_shutdown_jax_distributed)
        ray.wait(farewells, num_returns=len(farewells), timeout=_FAREWELL_S)


def check_gang(plan: SlicePlan, hosts: Sequence[Host]) -> None:
    """:raises BrokenSliceError: the workers are not on whole slices of the plan's shape."""
    if plan.slice.hosts > 1:
        verify(plan, hosts)


def _identify() -> Host:
    """Where this worker is; on the way, its environment is made fit for JAX."""
    mesh.prepare()
    node_id = ray.get_runtime_context().get_node_id()
    slice_name = os.environ.get("TPU_NAME") or node_id
    return Host(0, node_id, slice_name, int(os.environ.get("TPU_WORKER_ID", "0")))


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
