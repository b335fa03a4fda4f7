"""A backend that plays a script, so that a test says what is seen and checks what our own code makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from airflow_raytpu.backends.base import LogLine
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import ClusterState, JobState, Observation, Progress
from airflow_raytpu.model.orphans import Orphan
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.model.slices import Holder, SliceCondition, SliceState


class ScriptedBackend:
    """Each of *sights*, *accepts*, *pictures* and *ends* is used once, the last for ever; an exception is raised.

    :ivar calls: what was asked of it, as ``(verb, name)``.
    """

    name = "scripted"

    def __init__(
        self,
        sights: Iterable[Observation | Exception] = (),
        accepts: Iterable[bool | Exception] = (True,),
        lines: Iterable[LogLine | Exception] = (),
        stops: Iterable[Exception | None] = (None,),
        pictures: Iterable[list[SliceState] | Exception] = ([],),
        left: Iterable[Orphan] = (),
        ends: Iterable[bool | Exception] = (True,),
    ) -> None:
        self.sights = list(sights)
        self.accepts = list(accepts)
        self.lines = list(lines)
        self.stops = list(stops)
        self.pictures = list(pictures)
        self.left = list(left)
        self.ends = list(ends)
        self.calls: list[tuple[str, str]] = []
        self.requests: list[RayRequest] = []
        self.closed = 0

    def verbs(self, *wanted: str) -> list[str]:
        return [verb for verb, _ in self.calls if not wanted or verb in wanted]

    async def ensure(self, request: RayRequest) -> bool:
        self.calls.append(("ensure", request.name))
        self.requests.append(request)
        return bool(_next(self.accepts))

    async def observe(self, request: RayRequest) -> Observation:
        self.calls.append(("observe", request.name))
        return _next(self.sights)

    async def wait(self, request: RayRequest, pause_s: float) -> None:
        await asyncio.sleep(pause_s)

    async def tail(self, request: RayRequest, offset: int = 0) -> AsyncIterator[LogLine]:
        self.calls.append(("tail", request.name))
        for line in self.lines:
            if isinstance(line, Exception):
                raise line
            if line.offset > offset:
                yield line

    async def stop(self, request: RayRequest) -> None:
        self.calls.append(("stop", request.name))
        _next(self.stops)

    async def delete(self, request: RayRequest) -> None:
        self.calls.append(("delete", request.name))

    async def slices(self, cluster_name: str | None = None) -> list[SliceState]:
        self.calls.append(("slices", cluster_name or ""))
        return _next(self.pictures)

    async def orphans(self, deployment: str, older_than_s: float) -> list[Orphan]:
        self.calls.append(("orphans", f"{deployment} {older_than_s:.0f}"))
        return self.left

    async def reap(self, orphan: Orphan) -> bool:
        self.calls.append(("reap", orphan.name))
        return bool(_next(self.ends))

    async def close(self) -> None:
        self.closed += 1


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self, at: float = 1_000_000.0) -> None:
        self.at = at
        self.began = at

    def __call__(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        await asyncio.sleep(0)


class Lines:
    """A logger that keeps what it is told, with the time."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.kept: list[tuple[float, str, str]] = []

    def _keep(self, level: str, text: str, *values: Any) -> None:
        self.kept.append((self.clock(), level, text % values))

    def debug(self, text: str, *values: Any) -> None:
        self._keep("debug", text, *values)

    def info(self, text: str, *values: Any) -> None:
        self._keep("info", text, *values)

    def warning(self, text: str, *values: Any) -> None:
        self._keep("warning", text, *values)

    def texts(self, *levels: str) -> list[str]:
        return [text for _, level, text in self.kept if not levels or level in levels]


def running(request: str = "", done: int = 0, at: float = 1_000_000.0, **facts: Any) -> Observation:
    """A job at work on a ready cluster."""
    return Observation(
        cluster=ClusterState.READY,
        job=JobState.RUNNING,
        progress=Progress(
            request=request, phase="training", at=at, done=done, total=100, unit="step", slice_at=at, first_at=at
        ),
        facts=facts,
    )


def succeeded(value: dict[str, Any] | None = None) -> Observation:
    return Observation(
        cluster=ClusterState.READY, job=JobState.SUCCEEDED, outcome=Outcome(request="", value=value or {"step": 1})
    )


def failed(cause: str = "train_loop raised ValueError.", code: str = "RT301", **more: Any) -> Observation:
    return Observation(
        cluster=ClusterState.READY,
        job=JobState.FAILED,
        outcome=Outcome(request="", code=code, cause=cause, **more),
    )


def ready(**facts: Any) -> Observation:
    """A cluster that is up, with no job asked for."""
    return Observation(cluster=ClusterState.READY, facts=facts)


def starting(job: JobState | None = None) -> Observation:
    return Observation(cluster=ClusterState.STARTING, job=job)


def tpu_slice(condition: str = "idle", **changes: Any) -> SliceState:
    """A ``v6e:4x4`` of cluster ``shared``; busy is with ``digits/train``, broken without its host 2."""
    train = Identity(deployment="d", dag_id="digits", task_id="train", run_id="r")
    more: dict[str, Any] = {
        "busy": {"holders": (Holder(job="digits-train-x", owner=train),)},
        "broken": {"present": (0, 1, 3), "fault": "host 2 of 4 missing"},
    }.get(condition, {})
    return SliceState(
        **{
            "cluster": "shared",
            "name": "shared-0",
            "shape": "v6e:4x4",
            "hosts": 4,
            "present": (0, 1, 2, 3),
            "condition": SliceCondition(condition),
            **more,
            **changes,
        }
    )


def orphan(**changes: Any) -> Orphan:
    """A job ``x`` of ``digits/train``, silent since the beginning of time."""
    train = Identity(deployment="airflow", dag_id="digits", task_id="train", run_id="run")
    plain = {"kind": "RayJob", "name": "x", "uid": "u", "owner": train, "last_sign": 0.0, "why": "running"}
    return Orphan(**{**plain, **changes})


def _next(script: list[Any]) -> Any:
    step = script.pop(0) if len(script) > 1 else script[0]
    if isinstance(step, Exception):
        raise step
    return step
