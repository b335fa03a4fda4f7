"""One request on its whole way, watch to API server, in hours that take a moment: what the fault tests play on."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_raytpu.backends import rayapi, raypool
from airflow_raytpu.backends.kuberay.api import Pace
from airflow_raytpu.backends.kuberay.backend import KubeRayBackend
from airflow_raytpu.backends.kuberay.reach import DASHBOARD_PORT, Reach, Way
from airflow_raytpu.backends.kuberay.watch import Rhythm
from airflow_raytpu.backends.rayslices import OWNER
from airflow_raytpu.model.deadlines import Limits
from airflow_raytpu.model.errors import BackendUnreachable
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import Progress
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.model.verdict import Verdict
from airflow_raytpu.storage import objects
from airflow_raytpu.triggers import watching
from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.controller import ScriptedController
from tests.doubles.kubernetes.kinds import crds_folder
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.doubles.ray_dashboard import RayDashboard
from tests.doubles.scripted import Clock, Lines

SLICE_WAIT_S, TOTAL_S = 1200.0, 20_000.0
POLL_S = 10.0
QUIET_S = 60.0
_SETTLE_S = 0.004
_PACE = Pace(once=0.25, whole=0.2, first_pause=0.001, longest_pause=0.01)
_RHYTHM = Rhythm(silence=0.3, first_pause=0.001, longest_pause=0.01, lasting_pause=0.02, patience=0.1)

Deed = Callable[[], Any]

MOMENTS = {"created": 0, "taken": 10, "waiting": 30, "ready": 60, "running": 80, "finishing": 130, "over": 140}
"""Seconds after the request when the story goes on."""


class Stage:
    """
    :ivar clock: the time of backend, watch and server.
    :ivar operator: KubeRay runs; without it nothing that it does happens.
    :ivar uids: of every top-level object that there ever was.
    """

    def __init__(self, k: FakeKubernetes, ray: RayDashboard, storage: Path) -> None:
        self.k = k
        self.ray = ray
        self.clock = Clock(1_800_000_000.0)
        self.lines = Lines(self.clock)
        self.controller = ScriptedController(k)
        self.operator = True
        self.uids: set[str] = set()
        self.request = self.asks(storage)
        self._due: list[tuple[float, Deed]] = []
        self._story: list[tuple[float, Deed]] = []
        self._backends: list[KubeRayBackend] = []
        k.objects.now = self.clock

    def asks(self, storage: Path, kind: Kind = Kind.TRAIN, task_id: str = "train", **changes: Any) -> RayRequest:
        limits = Limits(asked_at=self.clock(), slice_wait_s=SLICE_WAIT_S, start_s=600.0, stall_s=900.0, total_s=TOTAL_S)
        return RayRequest(
            **{
                "identity": Identity(deployment="tests", dag_id="digits", task_id=task_id, run_id="run"),
                "kind": kind,
                "slice": "v6e:4x4",
                "storage": storage.as_uri(),
                "limits": limits,
                "code": None if kind is Kind.CLUSTER else "file:///code.zip",
                "options": {"image": "registry.example/ray:1"},
                **changes,
            }
        )

    def with_options(self, **more: Any) -> None:
        self.request = replace(self.request, options={**self.request.options, **more})

    def open(self, token: str = "", namespace: str = "default") -> KubeRayBackend:
        """A backend, as a process of its own has one."""
        access = TestAccess(self.k.url, token or self.k.token)
        reach = Reach(way=Way.PROXY)
        made = KubeRayBackend(access, namespace, "tests", reach, _PACE, _RHYTHM, self.clock)
        self._backends.append(made)
        return made

    def at(self, seconds: float, deed: Deed) -> None:
        """Do *deed* *seconds* after the request."""
        self._due.append((self.clock.began + seconds, deed))

    def story(self, until: str = "over") -> None:
        """All goes well, as far as *until*; what is late because the job is made late is done one by one."""
        deeds = {
            "taken": lambda: self.steps("provisioning"),
            "waiting": lambda: self.steps("starting"),
            "ready": self.comes_up,
            "running": self.runs,
            "finishing": self.succeeds,
            "over": lambda: self.steps("complete"),
        }
        for moment, deed in deeds.items():
            self._story.append((self.clock.began + MOMENTS[moment], deed))
            if moment == until:
                return

    async def watch(self, backend: KubeRayBackend, request: RayRequest | None = None) -> Verdict:
        """The verdict. Nothing may be silent, or there twice, on the way."""
        watched = request or self.request

        async def sleep(seconds: float) -> None:
            await self.passes(seconds, backend, watched)

        return await watching.Watch(backend, watched, log=self.lines, poll_s=POLL_S, now=self.clock, sleep=sleep).run()

    async def passes(self, seconds: float, backend: KubeRayBackend, request: RayRequest) -> None:
        """Let time pass, with what happens meanwhile; the backend waits as it would."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await backend.wait(request, seconds)
        self.clock.at += seconds
        await self._tell_story()
        due = sorted((each for each in self._due if each[0] <= self.clock()), key=lambda each: each[0])
        self._due = [each for each in self._due if each[0] > self.clock()]
        for _, deed in due:
            await _done(deed)
        self.tidy()
        self.take_stock()

    async def _tell_story(self) -> None:
        if self._story and self._story[0][0] <= self.clock() and self.jobs():
            await _done(self._story.pop(0)[1])

    def take_stock(self) -> None:
        there = {item["metadata"]["uid"] for item in self.jobs()}
        assert len(there) <= 1
        self.uids |= there

    def jobs(self) -> list[dict[str, Any]]:
        return self.k.items("rayjobs") if "rayjobs" in self._plurals() else []

    def tidy(self) -> None:
        """What KubeRay does with jobs that are deleted."""
        for job in self.jobs() if self.operator else ():
            if job["metadata"].get("deletionTimestamp"):
                self.controller.jobs.remove_cluster(job)
                self.controller.jobs.let_go(job)

    # What happens in the cluster.

    async def steps(self, until: str) -> None:
        if self.operator and self.jobs():
            await self.controller.step(until)

    async def comes_up(self) -> None:
        await self.steps("ready")
        self.answers()

    def answers(self) -> None:
        """Ray of the job's cluster is there."""
        with contextlib.suppress(LookupError):
            cluster = self.controller.cluster()
            self.controller.clusters.secret(cluster, self.ray.token)
            self.k.serve(f"{cluster['metadata']['name']}-head-svc", {DASHBOARD_PORT: self.ray.url})

    async def runs(self) -> None:
        await self.steps("running")
        if self.jobs():
            name, owner = self.request.name, self.request.identity.owner()
            self.ray.jobs[name] = {"status": "RUNNING", "message": "", "metadata": {OWNER: owner}}
            self.makes_progress()

    def makes_progress(self, done: int = 1) -> None:
        now = self.clock()
        progress = Progress(
            request=self.request.name, phase="training", at=now, slice_at=now, first_at=now, done=done, unit="step"
        )
        objects.write_json(self.request.outbox("progress"), progress.to_dict())

    async def succeeds(self) -> None:
        if self.request.name in self.ray.jobs:
            self.writes_result()
            self.ray.end(self.request.name)
        await self.steps("succeeded")

    def writes_result(self) -> None:
        objects.write_json(
            self.request.outbox("result"), Outcome(request=self.request.name, value={"step": 7}).to_dict()
        )

    # What must hold.

    def longest_silence(self) -> float:
        times = [self.clock.began, *(at for at, level, _ in self.lines.kept if level != "debug"), self.clock()]
        return max(after - before for before, after in itertools.pairwise(times))

    @property
    def elapsed(self) -> float:
        return self.clock() - self.clock.began

    async def nothing_is_left(self) -> None:
        """No object and no pod, once KubeRay and the collector have had their time."""
        async with asyncio.timeout(10):
            while any(self.left()):
                self.tidy()
                await asyncio.sleep(0.005)

    def left(self) -> list[str]:
        plurals = [each for each in ("rayjobs", "rayclusters", "pods") if each in self._plurals()]
        return [f"{plural}/{item['metadata']['name']}" for plural in plurals for item in self.k.items(plural)]

    def _plurals(self) -> set[str]:
        return {plural for _, plural in self.k._kinds}

    async def close(self) -> None:
        for backend in self._backends:
            await backend.close()


@contextlib.asynccontextmanager
async def staged(storage: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(rayapi, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(rayapi, "_LONGEST_PAUSE_S", 0.005)
    monkeypatch.setattr(rayapi, "_REOPEN_S", 0.01)
    monkeypatch.setattr(watching, "_DRAIN_S", 0.05)
    monkeypatch.setattr(raypool, "_TOTAL_S", 0.25)
    async with FakeKubernetes(crds=crds_folder()) as k, RayDashboard(log_batches=["a line\n"]).running() as ray:
        stage = Stage(k, ray, storage)
        try:
            yield stage
        finally:
            await stage.close()


async def _done(deed: Deed) -> None:
    done = deed()
    if inspect.isawaitable(done):
        await done


async def storage_is_down(*_: Any) -> None:
    raise BackendUnreachable("file:///storage does not answer.")
