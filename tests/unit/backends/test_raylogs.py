"""A job's log from Ray's REST API: every byte once, however it comes, and never all of it in memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.backends import rayapi, raylines, raylogs
from airflow_raytpu.backends.rayapi import RayApi
from airflow_raytpu.model.errors import BackendUnreachable
from tests.doubles.ray_dashboard import RayDashboard

TEXT = "".join(f'line {number}: ü 数 🚀 "quoted" \\ \t\n' for number in range(200))
WELL = ""
"""No fault, in the dashboard's list of them."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_PAUSE_S", "_LONGEST_PAUSE_S", "_REOPEN_S"):
        monkeypatch.setattr(rayapi, name, 0.0)


@pytest.fixture
async def ray() -> AsyncIterator[RayDashboard]:
    """A dashboard with a job that has ended and has a log."""
    async with RayDashboard().running() as dashboard:
        dashboard.jobs["job"] = {"status": "FAILED", "message": "", "metadata": {}}
        dashboard.logs["job"] = TEXT
        yield dashboard


@pytest.fixture
async def api(ray: RayDashboard) -> AsyncIterator[RayApi]:
    client = RayApi(ray.url, ray.token)
    yield client
    await client.close()


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


async def unpacked(data: bytes, size: int = 7) -> str:
    return b"".join([chunk async for chunk in raylogs.unpacked(in_pieces(data, size))]).decode()


@given(
    text=st.text(st.characters(codec="utf-8")),
    size=st.integers(1, 9),
    plain=st.booleans(),
    indent=st.none() | st.just(2),
)
async def test_any_log_comes_out_as_it_went_in_wherever_it_is_cut(
    text: str, size: int, plain: bool, indent: int | None
) -> None:
    assert await unpacked(json.dumps({"logs": text}, ensure_ascii=plain, indent=indent).encode(), size) == text


@pytest.mark.parametrize("answer", [b'{"logs": "cut sho', b'{"logs": "cut\\', b'{"lo', b"<html>" + b"x" * 1000])
async def test_what_is_no_whole_log_is_no_end_of_one(answer: bytes) -> None:
    with pytest.raises(BackendUnreachable, match="not a whole log"):
        await unpacked(answer)


async def test_a_log_of_32_megabytes_is_never_held() -> None:
    async def answer() -> AsyncIterator[bytes]:
        yield b'{"logs": "'
        for _ in range(500):
            yield piece
        yield b'"}'

    piece = json.dumps(("step 1, loss 0.5 " * 50 + "\N{SNOWMAN}\n") * 75)[1:-1].encode()
    tracemalloc.start()
    try:
        lines = 0
        async for _ in raylines.lines(raylogs.unpacked(answer()), 0):
            lines += 1
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert lines == 75 * 500
    assert len(piece) * 500 > 32_000_000
    assert most < 1_000_000


@pytest.mark.parametrize("fault", [500, 503, 429, "cut", "drop"])
async def test_trouble_in_the_middle_costs_no_line_and_doubles_none(
    ray: RayDashboard, api: RayApi, fault: int | str
) -> None:
    ray.faults = [WELL, fault, WELL, fault]
    assert b"".join([chunk async for chunk in api.follow_logs("job")]).decode() == TEXT
    assert ray.calls.count("GET /api/jobs/job/logs") >= 2


async def test_a_log_that_is_never_given_is_an_error_in_the_end(ray: RayDashboard, api: RayApi) -> None:
    ray.faults = [WELL, 500] * 10
    with pytest.raises(BackendUnreachable, match="500"):
        async for _ in api.follow_logs("job"):
            pass
    assert ray.calls.count("GET /api/jobs/job/logs") == rayapi._TRIES


async def test_the_log_of_a_job_that_goes_meanwhile_ends(ray: RayDashboard, api: RayApi) -> None:
    ray.faults = [WELL, 404]
    assert [chunk async for chunk in api.follow_logs("job")] == []
