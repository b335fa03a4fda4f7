"""A RayCluster on the fake API server, with KubeRay's double and real simulated slices behind it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from airflow_raytpu.backends.kuberay.backend import KubeRayBackend
from airflow_raytpu.backends.kuberay.reach import Reach, Way
from airflow_raytpu.backends.simulated.state import Arrivals
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import ClusterState
from airflow_raytpu.model.request import Kind, RayRequest
from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.controller import RealController
from tests.doubles.kubernetes.kinds import crds_folder
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.simulated_cluster import START_WITHIN_S, short_folder

_END_WITHIN_S = 120.0
DEPLOYMENT = "tests"
OPTIONS = {"image": "registry.example/ray-tpu:1"}


@dataclass(frozen=True)
class Kubernetes:
    """An API server whose Ray objects come to life on this machine."""

    k: FakeKubernetes
    controller: RealController

    def open(self) -> KubeRayBackend:
        """A backend as a process of its own would have; close it after use."""
        return KubeRayBackend(TestAccess(self.k.url, self.k.token), "default", DEPLOYMENT, Reach(way=Way.PROXY))

    def restart_operator(self) -> None:
        """KubeRay's pod begins anew."""
        self.k.loop.call_soon_threadsafe(self.controller.restart)

    def cluster_request(self, task_id: str, tpu_slice: str, **changes: Any) -> RayRequest:
        return RayRequest(
            **{
                "identity": Identity(deployment=DEPLOYMENT, dag_id="tests", task_id=task_id, run_id="run"),
                "kind": Kind.CLUSTER,
                "slice": tpu_slice,
                "storage": "file:///nowhere",
                "limits": Deadlines().since(time.time()),
                "options": OPTIONS,
                **changes,
            }
        )


@dataclass(frozen=True)
class KubernetesCluster:
    """A ready RayCluster that jobs may share."""

    kubernetes: Kubernetes
    request: RayRequest


@contextlib.contextmanager
def running_kubernetes(arrivals: Arrivals | None = None) -> Iterator[Kubernetes]:
    """Server and controller in a thread of their own; every slice has ended when the block ends."""
    with short_folder() as root, FakeKubernetes.in_thread(crds_folder()) as k:
        controller = RealController(k, root, arrivals=arrivals)
        _in(k, controller.__aenter__())
        try:
            yield Kubernetes(k, controller)
        finally:
            _in(k, controller.__aexit__(None, None, None))


@contextlib.contextmanager
def running_kubernetes_cluster(tpu_slice: str) -> Iterator[KubernetesCluster]:
    with running_kubernetes() as kubernetes:
        request = kubernetes.cluster_request("shared", tpu_slice)
        # Not in this thread: a fixture of the session may be made inside a test's event loop.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, _bring_up(kubernetes, request)).result()
        yield KubernetesCluster(kubernetes, request)


async def _bring_up(kubernetes: Kubernetes, request: RayRequest) -> None:
    backend = kubernetes.open()
    try:
        async with asyncio.timeout(START_WITHIN_S):
            while not await backend.ensure(request):
                await asyncio.sleep(0.1)
            while (await backend.observe(request)).cluster is not ClusterState.READY:
                await asyncio.sleep(0.2)
    finally:
        await backend.close()


def _in(k: FakeKubernetes, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, k.loop).result(_END_WITHIN_S)
