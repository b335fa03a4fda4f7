"""The one loop that watches a request: ensure, observe, judge, until the verdict is final.

Run by :class:`~airflow_raytpu.triggers.watch.WatchTrigger` in the triggerer, and by operators that do not defer.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow_raytpu import links
from airflow_raytpu.backends.base import Backend
from airflow_raytpu.model.errors import (
    BackendUnreachable,
    ClusterError,
    ForbiddenError,
    ForeignObjectError,
    LostError,
    NoResultError,
    NoSliceError,
    PlaceError,
    RayTpuError,
)
from airflow_raytpu.model.hearing import Ear
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.slices import span
from airflow_raytpu.model.verdict import Phase, Verdict, judge
from airflow_raytpu.storage import attempts, objects
from airflow_raytpu.triggers import capacity, stopping
from airflow_raytpu.triggers.relay import Relay

QUIET_S = 60.0
"""Longest silence in the log."""

_BREATH_S = 5.0
_CALL_LIMIT_S = 45.0
_PAUSE_S = 10.0
"""The most that a backend lets pass between two looks, whatever the poll."""

_BEAT_S = 60.0
_DRAIN_S = 5.0

Publish = Callable[[Mapping[str, str]], Awaitable[None]]
Sleep = Callable[[float], Awaitable[None]]


class Watch:
    """One watch over one request.

    :param log: a logger, for progress and the job's own lines.
    :param poll_s: seconds between two looks.
    :param now: the clock, seconds since the epoch.
    :param sleep: lets time pass; left out, the backend says when to look again.
    :param publish: is given XComs (links) as they become known.
    :param relay: copies the job's log; one is made where none is given.
    """

    def __init__(
        self,
        backend: Backend,
        request: RayRequest,
        *,
        log: Any,
        poll_s: float,
        now: Callable[[], float] = time.time,
        sleep: Sleep | None = None,
        publish: Publish | None = None,
        relay: Relay | None = None,
    ) -> None:
        self._backend = backend
        self._request = request
        self._log = log
        self._poll_s = poll_s
        self._now = now
        self._sleep = sleep or asyncio.sleep
        self._pause = sleep or functools.partial(backend.wait, request)
        self._publish = publish
        self._relay = relay or Relay(backend, request, log)
        self._accepted = False
        self._doubted = False
        self._told: tuple[str, Phase, float] | None = None
        self._trouble: RayTpuError | None = None
        self._began = now()
        self._ear = Ear()
        self._beat_at = -math.inf

    async def run(self) -> Verdict:
        """Watch to the end, stop what has to be stopped, and say what it meant."""
        try:
            while True:
                verdict = await self._look_aloud()
                if verdict.phase.final:
                    return await self.end(verdict)
                self._relay.start()
                self._tell(verdict)
                await self._pause(self._poll_s)
        finally:
            await self._relay.close()

    async def look(self) -> Verdict:
        """Take the next step if one is due, look once and judge."""
        await self._beat()
        refused = await self._ensure()
        if refused is not None:
            return await self._unless_done(refused)
        seen = _handed_over(self._ear.hear(await self._observe(), self._now()), self._request)
        await self.publish(links.of_cluster(seen.facts))
        if self._accepted:
            return self._doubt(judge(seen, self._request.limits, self._now()))
        verdict = judge(_not_yet(seen, self._request), self._request.limits, self._now())
        return self._doubt(self._explained(verdict))

    async def _beat(self) -> None:
        """Show the work that it is looked at, before it is submitted and then once a minute at most."""
        now = self._now()
        if not self._request.kind.is_job or now < self._beat_at:
            return
        self._beat_at = now + min(_BEAT_S, self._request.unwatched_s / 6)
        try:
            async with asyncio.timeout(_CALL_LIMIT_S):
                await asyncio.to_thread(objects.write_json, self._request.outbox("beat"), {"at": now})
        except (RayTpuError, TimeoutError) as error:
            self._log.debug("There is no sign of life for %s: %s", self._request.name, error)

    async def _look_aloud(self) -> Verdict:
        """:meth:`look`, and a line in the log where it takes so long that nobody would hear of us."""
        looking = asyncio.ensure_future(self.look())
        try:
            while True:
                told_at = self._told[2] if self._told is not None else self._began
                left = max(1.0, QUIET_S - _PAUSE_S - (self._now() - told_at))
                done, _ = await asyncio.wait({looking}, timeout=left)
                if done:
                    return looking.result()
                self._log.info("the backend has not answered yet")
                self._told = ("", Phase.WAITING, self._now())
        finally:
            if not looking.done():
                looking.cancel()
                await asyncio.wait({looking})

    def _explained(self, verdict: Verdict) -> Verdict:
        """What keeps it from being submitted is the cause that counts, rather than the slice that nobody asked for."""
        trouble = self._trouble
        if trouble is None or verdict.phase not in {Phase.WAITING, Phase.FAILED}:
            return verdict
        if verdict.phase is Phase.WAITING:
            return replace(verdict, message=f"not submitted yet: {trouble.cause}")
        if verdict.code != NoSliceError.code:
            return verdict
        waited = span(self._request.limits.slice_wait_s)
        cause = f"Not submitted within {waited} (slice_wait): {trouble.cause}"
        return replace(verdict, message=cause, code=trouble.code, lever=trouble.lever)

    async def end(self, verdict: Verdict) -> Verdict:
        """What a final *verdict* asks for: stop the work, free a cluster of its own, copy the last lines of the log."""
        if verdict.stop:
            await self._stop()
        if self._accepted:
            # What ended before the first look has a log, too.
            self._relay.start()
        await self._relay.finish(_DRAIN_S)
        if self._request.kind.is_job and self._request.owns_cluster and not verdict.stop:
            await self._stop()
        return verdict

    async def publish(self, known: Mapping[str, str]) -> None:
        """Store links, the first time that any are known."""
        if not known or self._publish is None:
            return
        publish, self._publish = self._publish, None
        try:
            async with asyncio.timeout(_CALL_LIMIT_S):
                await publish(known)
        except Exception as error:  # noqa: BLE001 - a link that is missing must not end the watch
            self._log.warning("The link to the dashboard could not be stored: %r", error)

    async def _ensure(self) -> Verdict | None:
        """Submit, until it is accepted. A refusal is a verdict."""
        if self._accepted:
            return None
        try:
            async with asyncio.timeout(_CALL_LIMIT_S):
                self._accepted = await self._backend.ensure(self._request)
            self._trouble = None
        except BackendUnreachable as error:
            self._trouble = error
        except TimeoutError:
            self._trouble = BackendUnreachable(f"no answer in {_CALL_LIMIT_S:.0f} s")
        except RayTpuError as error:
            return Verdict(
                phase=Phase.LOST if isinstance(error, PlaceError) else Phase.FAILED,
                message=error.cause,
                code=error.code,
                lever=error.lever,
                # What is there under our name is somebody else's: hands off.
                stop=not isinstance(error, ForeignObjectError),
                again=isinstance(error, LostError | ClusterError),
            )
        return None

    async def _unless_done(self, refused: Verdict) -> Verdict:
        """A cluster that is gone is no loss to a job that had succeeded there before Airflow heard of it."""
        if not refused.again or not _outlives_its_cluster(self._request):
            return refused
        try:
            async with asyncio.timeout(_CALL_LIMIT_S):
                outcome = await asyncio.to_thread(attempts.outcome_of, self._request)
        except (RayTpuError, TimeoutError) as error:
            self._log.debug("Whether %s had succeeded is not known: %s", self._request.name, error)
            return refused
        if outcome is None or not outcome.succeeded:
            return refused
        return Verdict(phase=Phase.SUCCEEDED, message="succeeded", value=outcome.value)

    async def _observe(self) -> Observation:
        try:
            async with asyncio.timeout(_CALL_LIMIT_S):
                return await self._proven(await self._backend.observe(self._request))
        except (BackendUnreachable, LostError) as error:
            return Observation.unreachable(error.cause)
        except TimeoutError:
            return Observation.unreachable(f"no answer in {_CALL_LIMIT_S:.0f} s")

    async def _proven(self, seen: Observation) -> Observation:
        try:
            return await capacity.proven(self._backend, self._request, seen)
        except ForbiddenError as error:
            return replace(seen, lacking=f"its slices cannot be seen: {error.cause} {error.lever}".strip())

    def _doubt(self, verdict: Verdict) -> Verdict:
        """A loss must be seen twice: a head that restarts and a result that was just written look the same at first."""
        doubtful = verdict.phase is Phase.LOST or verdict.code == NoResultError.code
        believed, self._doubted = self._doubted, doubtful
        if doubtful and not believed:
            return Verdict(phase=Phase.WAITING, message=f"looking again: {verdict.message}")
        return verdict

    def _tell(self, verdict: Verdict) -> None:
        """A line when something changed, every few seconds at most, and one a minute in any case."""
        now = self._now()
        if self._told is not None:
            message, phase, at = self._told
            changed = verdict.message != message and now - at >= _BREATH_S
            if not (changed or verdict.phase is not phase or now - at + max(self._poll_s, _PAUSE_S) > QUIET_S):
                return
        self._log.info("%s", verdict.message)
        self._told = (verdict.message, verdict.phase, now)

    async def _stop(self) -> None:
        request = self._request
        try:
            await stopping.insist(lambda: self._backend.stop(request), request.name, self._log, self._sleep)
        except Exception:  # noqa: BLE001 - it was told, and the verdict stands whatever becomes of the cluster
            self._log.warning("%s is left to its time to live, %.0f s.", request.name, request.ttl_s)


def _not_yet(seen: Observation, request: RayRequest) -> Observation:
    """Before a request is accepted, what is absent was not made yet: it is awaited, not lost."""
    job = seen.job
    if request.kind.is_job and job in (None, JobState.ABSENT):
        job = JobState.QUEUED
    cluster = ClusterState.STARTING if seen.cluster is ClusterState.ABSENT else seen.cluster
    return replace(seen, job=job, cluster=cluster)


def _handed_over(seen: Observation, request: RayRequest) -> Observation:
    """A job that left its success and is gone has succeeded, not been lost, or it would be done again.

    Whoever saw its end freed its cluster and could not tell Airflow; or nobody was there until its own time was over.
    """
    if seen.job is None or seen.job.ended or not _outlives_its_cluster(request):
        return seen
    gone = seen.job is JobState.ABSENT or seen.cluster in {ClusterState.ABSENT, ClusterState.FAILED}
    succeeded = seen.outcome is not None and seen.outcome.succeeded
    return replace(seen, job=JobState.SUCCEEDED) if gone and succeeded else seen


def _outlives_its_cluster(request: RayRequest) -> bool:
    """What it gave lies in storage; an application serves on its cluster and nowhere else."""
    return request.kind.is_job and request.kind is not Kind.SERVE


async def watch(backend: Backend, request: RayRequest, **settings: Any) -> Verdict:
    """:class:`Watch` from the first step to the final verdict; *settings* are its own."""
    return await Watch(backend, request, **settings).run()
