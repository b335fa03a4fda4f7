"""The job's log on its way into the task's: each line once, whatever happens to it, and never more than a log."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from airflow_raytpu.backends.base import LogLine
from airflow_raytpu.model.deadlines import Limits
from airflow_raytpu.model.errors import BackendUnreachable
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.verdict import Phase, Verdict
from airflow_raytpu.triggers import watching
from airflow_raytpu.triggers.relay import Relay
from tests.doubles.scripted import Clock, Lines, ScriptedBackend, failed, running, succeeded

NOW = 1_000_000.0
REQUEST = RayRequest(
    identity=Identity(deployment="d", dag_id="dag", task_id="task", run_id="run"),
    kind=Kind.TRAIN,
    slice="v6e:4x4",
    storage="",
    limits=Limits(asked_at=NOW, slice_wait_s=600, start_s=600, stall_s=300, total_s=3600),
    cluster="shared",
)
LINES = [LogLine(text=f"line {number:03}", offset=9 * (number + 1)) for number in range(1000)]
NOT_COPIED = "The last of the job's log did not come within 0.05 s; it is not copied."


class Cut(ScriptedBackend):
    """A log of :data:`LINES`, each connection to which is cut by *error* after *each* lines."""

    def __init__(self, each: int, error: Exception) -> None:
        super().__init__()
        self.each = each
        self.error = error

    async def tail(self, request: RayRequest, offset: int = 0) -> AsyncIterator[LogLine]:
        self.calls.append(("tail", request.name))
        rest = [line for line in LINES if line.offset > offset]
        for line in rest[: self.each]:
            yield line
        if len(rest) > self.each:
            raise self.error


class Open(ScriptedBackend):
    """A log with one line, that stays open."""

    async def tail(self, request: RayRequest, offset: int = 0) -> AsyncIterator[LogLine]:
        yield LogLine(text="step 3", offset=7)
        await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules[__name__], "REQUEST", replace(REQUEST, storage=tmp_path.as_uri()))
    monkeypatch.setattr("airflow_raytpu.triggers.relay._PAUSE_S", 0)
    monkeypatch.setattr(watching, "_DRAIN_S", 0.05)


async def seen(backend: ScriptedBackend) -> tuple[Verdict, Lines]:
    """What a watch over *backend* says, and what it told the log."""
    clock = Clock(NOW)
    lines = Lines(clock)
    return await watching.watch(backend, REQUEST, log=lines, poll_s=1.0, now=clock, sleep=clock.sleep), lines


@pytest.mark.parametrize("error", [BackendUnreachable("503"), ConnectionResetError("cut"), RuntimeError("1006")])
async def test_a_log_that_is_cut_ten_times_is_copied_once_and_in_order(error):
    backend, lines = Cut(100, error), Lines()
    relay = Relay(backend, REQUEST, lines)
    relay.start()
    await relay.finish(30)
    assert lines.texts() == [line.text for line in LINES]
    assert len(backend.verbs("tail")) == 10


async def test_a_log_that_can_never_be_read_is_said_once_and_the_status_counts():
    error = BackendUnreachable("HTTP 500")
    for end in (succeeded(), failed()):
        backend = ScriptedBackend([*[running(done=n) for n in range(50)], end], lines=[error])
        verdict, lines = await seen(backend)
        assert verdict.phase is (Phase.SUCCEEDED if end.outcome.succeeded else Phase.FAILED)
        assert lines.texts("warning") == ["The job's log cannot be read at present: HTTP 500", NOT_COPIED]
        assert len(backend.verbs("tail")) > 10


async def test_a_job_that_fails_while_its_log_is_read_has_failed():
    verdict, lines = await seen(Open([running(), running(), failed("loop raised ValueError.")]))
    assert (verdict.phase, verdict.message) == (Phase.FAILED, "loop raised ValueError.")
    assert "step 3" in lines.texts("info")


async def test_what_was_not_copied_is_not_passed_over_in_silence():
    _, lines = await seen(Open([running(), succeeded()]))
    assert lines.texts("warning") == [NOT_COPIED]


async def test_a_log_that_was_copied_to_its_end_is_not_called_cut_off():
    _, lines = await seen(ScriptedBackend([running(), succeeded()], lines=LINES[:3]))
    assert [line.text for line in LINES[:3]] == [text for text in lines.texts("info") if text.startswith("line")]
    assert lines.texts("warning") == []
