"""Each verb of the Jobs API under each fault that may pass, and one id that many ask for at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from airflow_raytpu.backends import rayapi
from airflow_raytpu.backends.rayapi import RayApi
from airflow_raytpu.model.errors import BackendUnreachable
from airflow_raytpu.model.observation import JobState
from tests.doubles.ray_dashboard import RayDashboard

JOB = ("job", "python -m run", {"working_dir": "gs://b/c.zip"}, {"raytpu.owner": "me"})


async def log_of(api: RayApi) -> bytes:
    return b"".join([chunk async for chunk in api.follow_logs("ended")])


VERBS: dict[str, Callable[[RayApi], Awaitable[Any]]] = {
    "submit": lambda api: api.submit_job(*JOB),
    "status": lambda api: api.get_job("running"),
    "logs": log_of,
    "stop": lambda api: api.stop_job("running"),
    "delete": lambda api: api.delete_job("ended"),
    "list": lambda api: api.listing(),
    "serve": lambda api: api.put_serve({"applications": {}}),
    "package": lambda api: api.upload_package("a.zip", b"zip"),
}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_PAUSE_S", "_LONGEST_PAUSE_S", "_REOPEN_S"):
        monkeypatch.setattr(rayapi, name, 0.0)


@asynccontextmanager
async def dashboard(faults: list[int | str]) -> AsyncIterator[tuple[RayDashboard, RayApi]]:
    """One with a job that runs and one that has ended, and a client of it."""
    async with RayDashboard().running() as ray:
        for name, status in {"running": "RUNNING", "ended": "SUCCEEDED"}.items():
            ray.jobs[name] = {"status": status, "message": "", "metadata": {}}
        ray.logs["ended"], ray.faults = "one\ntwo\n", faults
        api = RayApi(ray.url, ray.token)
        try:
            yield ray, api
        finally:
            await api.close()


@pytest.mark.parametrize("fault", [401, 403, 429, 500, 502, 503, 504, "drop", "cut"])
@pytest.mark.parametrize("verb", VERBS)
async def test_a_fault_that_passes_changes_nothing_of_what_becomes_of_it(verb: str, fault: int | str) -> None:
    ends = []
    for faults in ([], [fault, fault]):
        async with dashboard(faults) as (ray, api):
            answer = await VERBS[verb](api)
            left = {name: job["status"] for name, job in ray.jobs.items()}
            # Whether a submission was the first one or found the first one is all that a lost answer changes.
            ends.append((left, ray.packages, ray.serve, None if verb == "submit" else answer))
            assert ray.faults == []
    assert ends[0] == ends[1]


@pytest.mark.parametrize("verb", VERBS)
async def test_a_fault_that_stays_is_asked_a_few_times_and_no_more(verb: str) -> None:
    async with dashboard([503] * 1000) as (ray, api):
        with pytest.raises(BackendUnreachable, match="503"):
            await VERBS[verb](api)
        questions = 6 if verb == "list" else 1
        assert len(ray.calls) <= questions * rayapi._TRIES


async def test_of_eight_that_submit_one_id_at_once_one_does_and_the_others_find_it() -> None:
    async with dashboard([]) as (ray, _):
        clients = [RayApi(ray.url, ray.token) for _ in range(8)]
        found = await asyncio.gather(*(client.submit_job(*JOB) for client in clients))
        for client in clients:
            await client.close()
        assert found.count(None) == 1
        assert {each.state for each in found if each is not None} == {JobState.RUNNING}
        assert ray.jobs["job"]["status"] == "RUNNING"
        assert sorted(ray.jobs) == ["ended", "job", "running"]


@pytest.mark.parametrize(("asked", "waited"), [("7", 7.0), ("3600", 10.0), ("soon", 0.0)])
async def test_who_asks_for_time_is_given_it_within_a_limit(
    asked: str, waited: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(rayapi, "_sleep", sleep)
    async with dashboard([f"later {asked}"]) as (_, api):
        job = await api.get_job("running")
    assert job is not None
    assert pauses == [waited]
