"""Random lives of one request on Kubernetes: steps, trouble, hands that meddle, processes that die and begin anew.

Whatever comes, there is at most one object of the request; success has a result file and Ray's or KubeRay's own word;
trouble that passes ends nothing; and after ``delete`` nothing is left.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from airflow_raytpu.backends.kuberay.backend import KubeRayBackend
from airflow_raytpu.model.errors import BackendUnreachable
from airflow_raytpu.model.verdict import Phase, Verdict
from airflow_raytpu.storage import objects
from airflow_raytpu.triggers.watching import Watch
from tests.doubles.kubernetes.trouble import Fault
from tests.faults.kuberay_stage import POLL_S, Stage, staged

FAULTS: list[Fault] = [429, 500, 503, "reset", "drop", "cut", "hang", "garbage", "timeout"]
_STEPS = 60
_SEEDS = range(16)


class Walk:
    """
    :ivar harmed: somebody took away what the request needs, so that a loss is true.
    :ivar verdict: the first final one; the watch is over then, and the work removed.
    """

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.dice = random.Random(seed)
        self.harmed = False
        self.verdict: Verdict | None = None
        self.trail: list[str] = []
        self.backend, self.watch = self._begin()
        self._todo = ["initializing", "provisioning", "starting", "ready", "running", "succeeded", "complete"]

    def _begin(self) -> tuple[KubeRayBackend, Watch]:
        backend = self.stage.open()

        async def sleep(seconds: float) -> None:
            await self.stage.passes(seconds, backend, self.stage.request)

        watch = Watch(
            backend, self.stage.request, log=self.stage.lines, poll_s=POLL_S, now=self.stage.clock, sleep=sleep
        )
        return backend, watch

    async def step(self) -> None:
        deeds = [self.looks] * 6 + [self.goes_on] * 4 + [self.fails] * 2
        deeds += [self.heals, self.is_started_anew, self.watches_end, self.server_restarts]
        if self.dice.random() < 0.015:
            deeds = [self.meddles]
        deed = self.dice.choice(deeds)
        self.trail.append(deed.__name__)
        await deed()
        self.stage.tidy()
        self.stage.take_stock()

    async def looks(self) -> None:
        verdict = await self.watch.look()
        await self.stage.passes(POLL_S, self.backend, self.stage.request)
        if not verdict.phase.final:
            return
        if verdict.phase is Phase.SUCCEEDED:
            assert objects.exists(self.stage.request.outbox("result"))
            assert self.stage.ray.jobs[self.stage.request.name]["status"] == "SUCCEEDED"
        else:
            assert self.harmed, verdict
        self.verdict = await self.watch.end(verdict)

    async def goes_on(self) -> None:
        stage = self.stage
        if not self._todo or not stage.jobs() or stage.jobs()[0]["metadata"].get("deletionTimestamp") or self.harmed:
            return
        step = self._todo.pop(0)
        self.trail[-1] = step
        special: dict[str, Any] = {"ready": stage.comes_up, "running": stage.runs, "succeeded": stage.succeeds}
        await (special[step]() if step in special else stage.steps(step))

    async def fails(self) -> None:
        verb = self.dice.choice(["*", "create", "get", "list", "watch", "delete", "patch"])
        self.stage.k.fail(verb, "*", self.dice.choice(FAULTS), times=self.dice.randrange(1, 5))

    async def heals(self) -> None:
        self.stage.k.heal()

    async def is_started_anew(self) -> None:
        """The process dies; another takes the request up."""
        await self.backend.close()
        self.backend, self.watch = self._begin()

    async def watches_end(self) -> None:
        how: Any = self.dice.choice(["end", "reset"])
        self.stage.k.cut_watches(how)
        if self.dice.random() < 0.3:
            self.stage.k.compact()

    async def server_restarts(self) -> None:
        async with self.stage.k.outage():
            if self.dice.random() < 0.5:
                await self.looks_though_down()

    async def looks_though_down(self) -> None:
        verdict = await self.watch.look()
        # What was written down before is true still.
        assert not verdict.phase.final or self.harmed or verdict.phase is Phase.SUCCEEDED, verdict

    async def meddles(self) -> None:
        stage = self.stage
        there = stage.jobs()
        if not there:
            return
        self.harmed = True
        clusters = stage.k.items("rayclusters")
        if clusters and self.dice.random() < 0.5:
            stage.k.remove("rayclusters", clusters[0]["metadata"]["name"])
        else:
            stage.k.remove("rayjobs", there[0]["metadata"]["name"])


async def deleted(backend: KubeRayBackend, stage: Stage) -> None:
    """As a caller does it: again, where the API server was in trouble."""
    while True:
        try:
            await backend.delete(stage.request)
        except BackendUnreachable:
            continue
        return


@pytest.mark.parametrize("seed", _SEEDS)
async def test_whatever_happens_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    async with staged(tmp_path, monkeypatch) as stage:
        walk = Walk(stage, seed)
        for _ in range(_STEPS):
            await walk.step()
            if walk.verdict is not None:
                break
        stage.k.heal()
        deleting = asyncio.create_task(deleted(stage.open(), stage))
        async with asyncio.timeout(20):
            while not deleting.done():
                stage.tidy()
                await asyncio.sleep(0.01)
        await deleting
        assert not stage.left(), walk.trail
        assert len(stage.uids) <= 1, walk.trail
