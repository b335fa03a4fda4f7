"""The watch loop, with a clock that moves only when the loop sleeps."""

from __future__ import annotations

import asyncio
import itertools
import sys
from dataclasses import replace

import pytest

from airflow_raytpu.backends.base import LogLine
from airflow_raytpu.model.deadlines import Limits
from airflow_raytpu.model.errors import BackendUnreachable, ForeignObjectError, LostError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.verdict import Phase
from airflow_raytpu.storage import objects
from airflow_raytpu.triggers.relay import Relay
from airflow_raytpu.triggers.watching import Watch, watch
from tests.doubles.scripted import Clock, Lines, ScriptedBackend, failed, ready, running, starting, succeeded

NOW = 1_000_000.0
STORAGE = ""


@pytest.fixture(autouse=True)
def storage(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "STORAGE", tmp_path.as_uri())


def request(kind: Kind = Kind.TRAIN, cluster: str | None = "shared", **limits: float) -> RayRequest:
    spans = {"slice_wait_s": 600.0, "start_s": 600.0, "stall_s": 300.0, "total_s": 3600.0, **limits}
    return RayRequest(
        identity=Identity(deployment="d", dag_id="dag", task_id="task", run_id="run"),
        kind=kind,
        slice="v6e:4x4",
        storage=STORAGE,
        limits=Limits(asked_at=NOW, **spans),
        cluster=cluster,
    )


async def see(backend: ScriptedBackend, of: RayRequest, poll_s: float = 2.0, **more):
    clock = Clock(NOW)
    lines = Lines(clock)
    verdict = await watch(backend, of, log=lines, poll_s=poll_s, now=clock, sleep=clock.sleep, **more)
    return verdict, lines, clock


async def test_success_carries_the_value_and_stops_nothing_on_a_shared_cluster():
    backend = ScriptedBackend([running(done=1), running(done=2), succeeded({"step": 2})])
    verdict, _, _ = await see(backend, request())
    assert verdict.phase is Phase.SUCCEEDED
    assert verdict.value == {"step": 2}
    assert backend.verbs("stop") == []


async def test_a_cluster_of_its_own_is_freed_after_success_and_after_failure():
    for last in (succeeded(), failed()):
        backend = ScriptedBackend([running(), last])
        await see(backend, request(cluster=None))
        assert backend.verbs("stop") == ["stop"]


async def test_a_ready_cluster_is_the_success_of_a_cluster_request_and_is_not_stopped():
    backend = ScriptedBackend([starting(), starting(), ready(dashboard="http://d")], accepts=[False, False, True])
    verdict, _, _ = await see(backend, request(Kind.CLUSTER, cluster=None))
    assert verdict.phase is Phase.SUCCEEDED
    assert backend.verbs("stop") == []


async def test_before_acceptance_an_absent_job_is_awaited_and_not_lost():
    absent = Observation(cluster=ClusterState.ABSENT, job=JobState.ABSENT)
    ready_no_job = Observation(cluster=ClusterState.READY, job=None)
    backend = ScriptedBackend([absent, absent, ready_no_job, ready_no_job, succeeded()], accepts=[False] * 4 + [True])
    verdict, _, _ = await see(backend, request(cluster=None))
    assert verdict.phase is Phase.SUCCEEDED


async def test_ensure_is_not_called_again_once_accepted():
    backend = ScriptedBackend([running(), running(), succeeded()], accepts=[False, True])
    await see(backend, request())
    assert backend.verbs("ensure") == ["ensure", "ensure"]


async def test_transient_trouble_in_ensure_and_observe_is_waited_out():
    trouble = BackendUnreachable("connection refused")
    backend = ScriptedBackend(
        [trouble, running(), trouble, Observation.unreachable("502"), succeeded()], accepts=[trouble, trouble, True]
    )
    verdict, _, _ = await see(backend, request())
    assert verdict.phase is Phase.SUCCEEDED


async def test_trouble_that_lasts_ends_at_a_deadline_with_the_trouble_named():
    backend = ScriptedBackend([BackendUnreachable("connection refused")])
    verdict, _, clock = await see(backend, request(total_s=700.0))
    assert verdict.code == "RT207"
    assert "connection refused" in verdict.message
    assert clock() - NOW == pytest.approx(700, abs=5)
    assert backend.verbs("stop") == ["stop"]


@pytest.mark.parametrize(
    ("sight", "limits", "code", "after"),
    [
        pytest.param(starting(JobState.QUEUED), {}, "RT203", 600, id="slice_wait"),
        pytest.param(running(at=NOW), {"stall_s": 60.0}, "RT206", 60, id="stall"),
        pytest.param(running(at=NOW), {"total_s": 120.0}, "RT207", 120, id="total"),
    ],
)
async def test_a_deadline_fires_in_time_and_stops_the_work(sight, limits, code, after):
    backend = ScriptedBackend([sight])
    verdict, _, clock = await see(backend, request(**limits))
    assert verdict.code == code
    assert clock() - NOW == pytest.approx(after, abs=5)
    assert backend.verbs("stop") == ["stop"]


async def test_an_object_of_somebody_else_is_a_failure_that_is_left_alone():
    backend = ScriptedBackend([starting()], accepts=[ForeignObjectError("taken by dag2", "rename")])
    verdict, _, _ = await see(backend, request())
    assert (verdict.phase, verdict.code) == (Phase.LOST, "RT202")
    assert backend.verbs("stop") == []


async def test_a_shared_cluster_that_is_gone_is_a_loss():
    backend = ScriptedBackend([starting()], accepts=[LostError("cluster shared is gone")])
    verdict, _, _ = await see(backend, request())
    assert (verdict.phase, verdict.code) == (Phase.LOST, "RT204")


async def test_a_loss_is_believed_only_when_seen_twice():
    absent = Observation(cluster=ClusterState.READY, job=JobState.ABSENT)
    once = ScriptedBackend([running(), absent, running(), succeeded()])
    verdict, _, _ = await see(once, request())
    assert verdict.phase is Phase.SUCCEEDED
    twice = ScriptedBackend([running(), absent, absent])
    verdict, _, _ = await see(twice, request())
    assert (verdict.phase, verdict.code) == (Phase.LOST, "RT204")


async def test_a_success_whose_result_is_written_a_moment_later_is_a_success():
    bare = Observation(cluster=ClusterState.READY, job=JobState.SUCCEEDED)
    verdict, _, _ = await see(ScriptedBackend([bare, succeeded()]), request())
    assert verdict.phase is Phase.SUCCEEDED
    verdict, _, _ = await see(ScriptedBackend([bare]), request())
    assert verdict.code == "RT302"


async def test_the_log_is_never_silent_for_longer_than_a_minute():
    backend = ScriptedBackend([running(done=5)])
    _, lines, clock = await see(backend, request(stall_s=400.0), poll_s=2.0)
    times = [NOW, *[at for at, _, _ in lines.kept], clock()]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 60


async def test_a_line_says_something_new_and_comes_every_few_seconds_at_most():
    backend = ScriptedBackend([running(done=n, at=NOW + n) for n in range(50)] + [succeeded()])
    _, lines, _ = await see(backend, request(), poll_s=1.0)
    texts = [text for text in lines.texts("info") if "step" in text]
    assert len(texts) == len(set(texts)) == 10


async def test_a_new_phase_is_told_at_once():
    backend = ScriptedBackend([starting(JobState.QUEUED), running(), succeeded()])
    _, lines, _ = await see(backend, request(), poll_s=1.0)
    assert len(lines.texts("info")) == 2


async def test_the_jobs_log_is_copied():
    backend = ScriptedBackend(
        [running(), succeeded()], lines=[LogLine(text="\x1b[36m(worker)\x1b[0m hello 100%", offset=11)]
    )
    _, lines, _ = await see(backend, request())
    assert "(worker) hello 100%" in lines.texts("info")


async def test_what_ended_before_the_first_look_has_its_log_copied():
    _, lines, _ = await see(ScriptedBackend([failed()], lines=[LogLine(text="last words", offset=11)]), request())
    assert "last words" in lines.texts("info")


async def test_a_link_that_cannot_be_stored_decides_nothing():
    async def publish(known):
        raise RuntimeError("no answer")

    backend = ScriptedBackend([running(dashboard="http://d"), succeeded()])
    verdict, lines, _ = await see(backend, request(), publish=publish)
    assert verdict.phase is Phase.SUCCEEDED
    assert "no answer" in lines.texts("warning")[0]


async def test_a_link_that_airflow_takes_for_ever_to_store_holds_no_look_up(monkeypatch):
    async def publish(known):
        await asyncio.Event().wait()

    monkeypatch.setattr("airflow_raytpu.triggers.watching._CALL_LIMIT_S", 0.05)
    backend = ScriptedBackend([running(dashboard="http://d"), succeeded()])
    async with asyncio.timeout(10):
        verdict, lines, _ = await see(backend, request(), publish=publish)
    assert verdict.phase is Phase.SUCCEEDED
    assert "TimeoutError" in lines.texts("warning")[0]


async def test_a_log_that_cannot_be_read_decides_nothing(monkeypatch):
    monkeypatch.setattr("airflow_raytpu.triggers.watching._DRAIN_S", 0)
    backend = ScriptedBackend([running()] * 9 + [succeeded()], lines=[RuntimeError("socket closed with 1006")])
    verdict, lines, _ = await see(backend, request())
    assert verdict.phase is Phase.SUCCEEDED
    assert len([text for text in lines.texts("warning") if "1006" in text]) <= 1


async def test_the_log_goes_on_where_it_was_left():
    backend = ScriptedBackend(
        [running(), succeeded()], lines=[LogLine(text="old", offset=3), LogLine(text="new", offset=7)]
    )
    clock, lines = Clock(NOW), Lines()
    relay = Relay(backend, request(), lines, offset=3)
    await watch(backend, request(), log=lines, poll_s=1.0, now=clock, sleep=clock.sleep, relay=relay)
    assert "new" in lines.texts()
    assert "old" not in lines.texts()
    assert relay.offset == 7


async def test_a_stop_that_fails_is_tried_again_and_then_left_to_the_ttl():
    trouble = BackendUnreachable("connection refused")
    backend = ScriptedBackend([running(at=NOW)], stops=[trouble, trouble, None])
    verdict, _, _ = await see(backend, request(stall_s=10.0))
    assert verdict.code == "RT206"
    assert len(backend.verbs("stop")) == 3
    backend = ScriptedBackend([running(at=NOW)], stops=[trouble])
    verdict, lines, _ = await see(backend, request(stall_s=10.0))
    assert verdict.code == "RT206"
    assert "time to live" in lines.texts("warning")[-1]


async def test_links_are_published_once_as_soon_as_the_cluster_offers_them():
    published = []

    async def publish(known):
        published.append(dict(known))

    backend = ScriptedBackend(
        [starting(JobState.QUEUED), running(dashboard="http://d"), running(dashboard="http://d"), succeeded()]
    )
    await see(backend, request(), publish=publish)
    assert published == [{"_link_RayDashboardLink": "http://d"}]


async def test_cancelling_the_watch_leaves_no_task_and_stops_nothing():
    backend = ScriptedBackend([running()], lines=[LogLine(text="x", offset=1)])
    watching = asyncio.ensure_future(watch(backend, request(), log=Lines(), poll_s=0.0, now=Clock(NOW)))
    for _ in range(10):
        await asyncio.sleep(0)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert backend.verbs("stop") == []
    assert len(asyncio.all_tasks()) == 1


async def test_one_look_takes_one_step():
    backend = ScriptedBackend([starting()], accepts=[False])
    clock = Clock(NOW)
    verdict = await Watch(
        backend, replace(request(), cluster=None), log=Lines(), poll_s=1, now=clock, sleep=clock.sleep
    ).look()
    assert not verdict.phase.final
    assert backend.verbs() == ["ensure", "observe"]


class Attended(ScriptedBackend):
    """Keeps what the work could read of whoever looks at it, each time that something is asked."""

    def __init__(self, sights):
        super().__init__(sights)
        self.signs = []

    async def ensure(self, request):
        self.signs.append(objects.read_record(request.outbox("beat")))
        return await super().ensure(request)

    async def observe(self, request):
        self.signs.append(objects.read_record(request.outbox("beat")))
        return await super().observe(request)


async def test_work_is_shown_that_it_is_looked_at_before_it_is_submitted_and_then_once_a_minute():
    backend = Attended([*[running(done=done) for done in range(7)], succeeded()])
    await see(backend, request(), poll_s=20.0)
    seconds = [sign["at"] - NOW for sign in backend.signs]
    assert seconds == [0, 0, 0, 0, 60, 60, 60, 120, 120]


async def test_a_cluster_is_shown_nothing_as_it_has_a_time_to_live_of_its_own():
    backend = Attended([starting(), ready()])
    await see(backend, request(Kind.CLUSTER, cluster=None))
    assert set(backend.signs) == {None}


async def test_storage_that_takes_no_sign_of_life_decides_nothing(tmp_path):
    (tmp_path / "outbox").touch()  # a file in the place of the folder
    verdict, lines, _ = await see(ScriptedBackend([running(), succeeded()]), request())
    assert verdict.phase is Phase.SUCCEEDED
    assert any("no sign of life" in line for line in lines.texts("debug"))
