"""What serving's contract needs of a place: a backend on an empty place, real rollouts, and requests to what serves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import PlaceError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import Observation
from airflow_raytpu.model.policies import Rollout
from airflow_raytpu.model.request import Kind, RayRequest

SOURCE = """
from ray import serve
from starlette.responses import PlainTextResponse

@serve.deployment(ray_actor_options={"num_cpus": 0.1, "resources": {"TPU": 1}})
class Echo:
    def __init__(self, version, fault):
        if fault == "init":
            raise ValueError(f"the weights of {version} are missing")
        self.version, self.fault = version, fault

    async def __call__(self, request):
        return PlainTextResponse(self.version, status_code=500 if self.fault == "smoke" else 200)

def build(model, version, fault=""):
    return Echo.bind(version, fault)
"""
_WITHIN_S = 400.0


@dataclass(frozen=True)
class ServingStage:
    """
    :param open: a new backend object, as another process would have.
    :param url: where what the service of a name serves is reached from here; empty while it is not.
    :param restart: has the head of a service, and what keeps it, begin anew; ``None`` where nothing does.
    """

    open: Callable[[], Backend]
    code: str
    storage: Path
    url: Callable[[str], str]
    token: str = ""
    restart: Callable[[str], None] | None = None

    def rollout(self, version: str, fault: str = "", run: str = "", **changes: Any) -> RayRequest:
        """A rollout in a run of its own."""
        run = run or f"run-{version}{fault}"
        rollout = Rollout(smoke=[{"path": "/", "contains": version}]).to_dict()
        return RayRequest(
            **{
                "identity": Identity(deployment="tests", dag_id="digits", task_id="serve", run_id=run),
                "kind": Kind.SERVE,
                "slice": "v6e:2x2",
                "storage": (self.storage / run).as_uri(),
                "limits": Deadlines().since(time.time()),
                "code": self.code,
                "ttl_s": 60.0,
                "options": {"image": "registry.example/ray-tpu:1"},
                "arguments": {
                    "app": "contract_app:build",
                    "app_args": {"version": version, "fault": fault},
                    "model": None,
                    "name": "echo",
                    "route_prefix": "/",
                    "rollout": rollout,
                },
                **changes,
            }
        )

    async def deploy(self, *args: Any, **kwargs: Any) -> Observation:
        return await self.carry_out(self.rollout(*args, **kwargs))

    @contextlib.asynccontextmanager
    async def backend(self) -> AsyncIterator[Backend]:
        """One of a process of its own."""
        opened = self.open()
        try:
            yield opened
        finally:
            await opened.close()

    async def carry_out(self, rollout: RayRequest) -> Observation:
        """As an operator does: submit, look until it has ended, and stop what is left of it."""
        async with asyncio.timeout(_WITHIN_S), self.backend() as backend:
            while not await self._accepted(backend, rollout):
                await backend.observe(rollout)
                await asyncio.sleep(0.2)
            while True:
                seen = await backend.observe(rollout)
                if seen.job is not None and seen.job.ended and seen.reachable:
                    await backend.stop(rollout)
                    return seen
                await asyncio.sleep(0.2)

    async def _accepted(self, backend: Backend, rollout: RayRequest) -> bool:
        try:
            return await backend.ensure(rollout)
        except PlaceError:
            # A machine that is too busy brings no Ray up. Then what there is is given back, and begun again.
            await backend.stop(rollout)
            return False

    async def answer(self, name: str) -> str:
        """What the service answers; a word for why where it does not."""
        if not (url := self.url(name)):
            return "nobody"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as reply:
                return await reply.text() if reply.status == 200 else f"status {reply.status}"
        except aiohttp.ClientError as error:
            return repr(error)

    async def until(self, name: str, wanted: Callable[[str], bool]) -> None:
        """Until what the service answers is as *wanted*."""
        async with asyncio.timeout(_WITHIN_S):
            while not wanted(await self.answer(name)):
                await asyncio.sleep(0.2)
