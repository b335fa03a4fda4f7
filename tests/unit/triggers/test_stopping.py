"""Steps towards the end of remote work, in trouble."""

from __future__ import annotations

import asyncio

import pytest

from airflow_raytpu.triggers import stopping
from tests.doubles.scripted import Clock, Lines


async def test_a_step_that_hangs_is_given_up_and_taken_again(monkeypatch):
    monkeypatch.setattr(stopping, "_TRY_LIMIT_S", 0.01)
    clock, tries = Clock(), []

    async def step():
        tries.append(clock())
        if len(tries) < 3:
            await asyncio.Event().wait()
        return "done"

    lines = Lines(clock)
    async with asyncio.timeout(10):
        assert await stopping.insist(step, "digits-train-x", lines, clock.sleep) == "done"
    assert [at - clock.began for at in tries] == [0, 2, 6]
    assert lines.texts() == [f"digits-train-x could not be stopped (try {n}): TimeoutError()" for n in (1, 2)]


async def test_a_step_that_never_goes_well_is_an_error_in_the_end():
    clock, tries = Clock(), []

    async def step():
        tries.append(clock())
        raise OSError("disk full")

    lines = Lines(clock)
    with pytest.raises(OSError, match="disk full"):
        await stopping.insist(step, "x", lines, clock.sleep)
    assert len(lines.texts("warning")) == len(tries) > 3
    assert tries[-1] == clock(), "after the last one nobody waits any more"


async def test_whoever_is_cancelled_in_a_step_takes_no_other():
    tries = []

    async def step():
        tries.append(1)
        await asyncio.Event().wait()

    stopping_ = asyncio.ensure_future(stopping.insist(step, "x", Lines()))
    await asyncio.sleep(0)
    stopping_.cancel()
    await asyncio.wait({stopping_})
    assert stopping_.cancelled()
    assert len(tries) == 1
