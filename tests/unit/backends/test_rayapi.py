"""The client of Ray's REST APIs, over real HTTP on loopback."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator

import aiohttp
import pytest

from airflow_raytpu.backends import rayapi, raypool
from airflow_raytpu.backends.rayapi import RayApi
from airflow_raytpu.model.errors import BackendUnreachable, RequestError
from airflow_raytpu.model.observation import JobState
from tests.doubles.ray_dashboard import RayDashboard

JOB = ("job", "python -m run", {"working_dir": "gs://b/c.zip"}, {"raytpu.owner": "me"})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rayapi, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(rayapi, "_LONGEST_PAUSE_S", 0.0)
    monkeypatch.setattr(rayapi, "_REOPEN_S", 0.0)
    monkeypatch.setattr(rayapi, "_IDLE_S", 0.05)


@pytest.fixture
async def ray() -> AsyncIterator[RayDashboard]:
    async with RayDashboard().running() as dashboard:
        yield dashboard


@pytest.fixture
async def api(ray: RayDashboard) -> AsyncIterator[RayApi]:
    client = RayApi(ray.url + "/", ray.token)
    yield client
    await client.close()


async def test_a_job_is_submitted_seen_stopped_and_deleted(ray: RayDashboard, api: RayApi) -> None:
    assert (await api.version())["ray_version"] == "2.60.0"
    assert await api.submit_job(*JOB) is None
    seen = await api.get_job("job")
    assert seen is not None
    assert (seen.state, seen.metadata) == (JobState.RUNNING, {"raytpu.owner": "me"})
    with pytest.raises(RequestError, match="non-terminal"):
        await api.delete_job("job")
    await api.stop_job("job")
    assert (await api.get_job("job")).state is JobState.STOPPED  # type: ignore[union-attr]
    await api.delete_job("job")
    assert await api.get_job("job") is None


async def test_what_is_absent_needs_no_stopping_nor_deleting(api: RayApi) -> None:
    await api.stop_job("job")
    await api.delete_job("job")


async def test_a_duplicate_is_the_job_that_is_there(ray: RayDashboard, api: RayApi) -> None:
    await api.submit_job(*JOB)
    found = await api.submit_job(*JOB)
    assert found is not None
    assert found.metadata == {"raytpu.owner": "me"}
    assert len(ray.jobs) == 1


async def test_a_submission_whose_answer_was_lost_is_not_made_twice(ray: RayDashboard, api: RayApi) -> None:
    ray.faults = ["drop"]
    found = await api.submit_job(*JOB)
    assert found is not None
    assert found.state is JobState.RUNNING
    assert ray.calls.count("POST /api/jobs/") == 2
    assert len(ray.jobs) == 1


async def test_who_holds_what_is_listed_in_detail_and_without_the_dead(ray: RayDashboard, api: RayApi) -> None:
    ray.rows = {
        "nodes": [{"node_id": "a", "state": "ALIVE"}, {"node_id": "b", "state": "DEAD"}],
        "placement_groups": [{"state": "CREATED"}, {"state": "REMOVED"}, {"state": "RESCHEDULING"}],
        "actors": [{"state": "DEAD"}, {"state": "PENDING_CREATION"}, {"state": "ALIVE"}],
        "tasks": [{"state": "FINISHED"}, {"state": "RUNNING"}],
    }
    await api.submit_job(*JOB)
    found = await api.listing()
    assert [row["node_id"] for row in found.nodes] == ["a", "b"]
    assert [row["state"] for row in found.groups] == ["CREATED", "RESCHEDULING"]
    assert [row["state"] for row in found.actors] == ["PENDING_CREATION", "ALIVE"]
    assert [row["state"] for row in found.tasks] == ["RUNNING"]
    assert [row["metadata"] for row in found.jobs] == [{"raytpu.owner": "me"}]


async def test_a_list_in_another_form_is_no_list_of_nothing(ray: RayDashboard, api: RayApi) -> None:
    ray.rows = {"nodes": None}  # type: ignore[dict-item]
    with pytest.raises(BackendUnreachable, match="nodes"):
        await api.listing()


async def test_what_ray_refuses_is_the_requests_fault(api: RayApi) -> None:
    with pytest.raises(RequestError, match="entrypoint is missing"):
        await api.submit_job("job", "", {}, {})


@pytest.mark.parametrize("fault", [401, 403, 408, 429, 500, 502, 503, 504, "drop", "cut"])
async def test_a_passing_fault_passes(ray: RayDashboard, api: RayApi, fault: int | str) -> None:
    await api.submit_job(*JOB)
    ray.faults = [fault, fault]
    assert (await api.get_job("job")).state is JobState.RUNNING  # type: ignore[union-attr]


async def test_a_fault_that_stays_is_unreachable_with_its_reason(ray: RayDashboard, api: RayApi) -> None:
    ray.faults = [503] * 20
    with pytest.raises(BackendUnreachable, match="503"):
        await api.get_job("job")
    assert len(ray.calls) == rayapi._TRIES


async def test_no_answer_in_time_is_unreachable(
    ray: RayDashboard, api: RayApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raypool, "_READ_S", 0.05)
    ray.faults = ["slow"] * 20
    with pytest.raises(BackendUnreachable, match="Timeout"):
        await api.get_job("job")


async def test_a_wrong_token_is_unreachable_and_says_so(ray: RayDashboard) -> None:
    client = RayApi(ray.url, "wrong")
    with pytest.raises(BackendUnreachable, match="401"):
        await client.version()
    await client.close()


async def test_nobody_listening_is_unreachable() -> None:
    client = RayApi("http://127.0.0.1:1", "")
    with pytest.raises(BackendUnreachable, match=r"127\.0\.0\.1:1"):
        await client.get_job("job")
    await client.close()


async def test_something_else_that_answers_is_unreachable(ray: RayDashboard, api: RayApi) -> None:
    ray.faults = [404]
    with pytest.raises(BackendUnreachable, match="not Ray"):
        await api.serve_status()


async def test_a_refusal_to_speak_of_a_job_is_no_word_on_it(ray: RayDashboard, api: RayApi) -> None:
    for ask in (api.get_job, api.stop_job):
        ray.faults[:] = [400]
        with pytest.raises(BackendUnreachable, match="is not Ray's"):
            await ask("job")


async def test_the_token_is_never_in_an_error(ray: RayDashboard, api: RayApi) -> None:
    ray.faults = [500] * 20
    with pytest.raises(BackendUnreachable) as caught:
        await api.version()
    assert ray.token not in repr(caught.value) + str(caught.value.__cause__)


async def test_serve_is_put_and_seen(api: RayApi) -> None:
    await api.put_serve({"applications": {"digits": {}}})
    assert await api.serve_status() == {"applications": {"digits": {}}}


async def test_a_package_is_uploaded_once(ray: RayDashboard, api: RayApi) -> None:
    assert await api.upload_package("a.zip", b"zip") == "gcs://a.zip"
    assert await api.upload_package("a.zip", b"zip") == "gcs://a.zip"
    assert ray.packages == {"a.zip": b"zip"}
    assert ray.calls.count("PUT /api/packages/gcs/a.zip") == 1


async def log_from(api: RayApi, offset: int = 0) -> str:
    return b"".join([chunk async for chunk in api.follow_logs("job", offset)]).decode()


async def test_a_log_is_followed_to_the_end_of_its_job(ray: RayDashboard, api: RayApi) -> None:
    await api.submit_job(*JOB)
    ray.end("job")
    ray.log_batches, ray.logs["job"] = ["one\ntwo\n"], "one\ntwo\n"
    assert await log_from(api) == "one\ntwo\n"


async def test_a_log_that_closes_in_good_order_while_its_job_runs_is_opened_again(
    ray: RayDashboard, api: RayApi
) -> None:
    await api.submit_job(*JOB)
    ray.log_batches = ["eins\nzw", "eins\nzwö", "eins\nzwölf\ndr"]
    ray.logs["job"] = "eins\nzwölf\ndrei\n"
    got = b""
    async for chunk in api.follow_logs("job"):
        got += chunk
        if got.endswith(b"dr"):
            ray.end("job")
    assert got.decode() == "eins\nzwölf\ndrei\n"
    assert ray.calls.count("GET /api/jobs/job/logs/tail") >= 3


async def test_a_log_that_stays_open_is_left_once_its_job_has_ended(ray: RayDashboard, api: RayApi) -> None:
    await api.submit_job(*JOB)
    ray.log_batches, ray.logs["job"], ray.log_stays_open = ["one\n"], "one\ntwo\n", True
    got = b""
    async for chunk in api.follow_logs("job"):
        got += chunk
        ray.end("job")
    assert got == b"one\ntwo\n"


async def test_a_log_resumes_at_an_offset_in_bytes(ray: RayDashboard, api: RayApi) -> None:
    await api.submit_job(*JOB)
    ray.end("job")
    text = "zwölf\ndrei\nvier\n"
    ray.log_batches, ray.logs["job"] = ["zwölf\ndrei\n"], text
    assert await log_from(api, offset=len("zwölf\n".encode())) == "drei\nvier\n"
    assert await log_from(api, offset=len(text.encode())) == ""


async def test_a_connection_to_the_log_that_is_refused_loses_nothing(ray: RayDashboard, api: RayApi) -> None:
    await api.submit_job(*JOB)
    ray.end("job")
    ray.log_batches, ray.logs["job"] = ["one\n"], "one\n"
    ray.faults = [503]
    assert await log_from(api) == "one\n"


async def test_the_log_of_a_job_that_is_gone_ends(api: RayApi) -> None:
    assert await log_from(api) == ""


async def test_clients_of_one_loop_share_one_pool(ray: RayDashboard) -> None:
    clients = [RayApi(ray.url, ray.token) for _ in range(3)]
    for client in clients:
        await client.version()
    sessions = {client._connections.session() for client in clients}
    assert len(sessions) == 1
    session = sessions.pop()
    for client in clients:
        assert not session.closed
        await client.close()
    assert session.closed
    # A client may be used again after its pool has gone.
    await clients[0].version()
    await clients[0].close()
    assert isinstance(session, aiohttp.ClientSession)


async def test_a_client_that_nobody_closed_keeps_no_connections_and_says_so_at_once(ray: RayDashboard) -> None:
    forgotten = [RayApi(ray.url, ray.token)]
    await forgotten[0].version()
    session = weakref.ref(forgotten[0]._connections.session())

    def forget() -> None:
        forgotten.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="Unclosed"):
        forget()
    assert session() is None
