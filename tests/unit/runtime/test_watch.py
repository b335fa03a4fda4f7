"""News of a try, as progress, as points of the series, and as what its time went into."""

from __future__ import annotations

import pytest

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.goodput import Goodput
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.spent import Spent
from airflow_raytpu.model.verdict import judge
from airflow_raytpu.runtime import watch as module
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.series import Series
from airflow_raytpu.runtime.tally import StepTally
from airflow_raytpu.runtime.watch import Watch
from airflow_raytpu.storage.series import series


class Scene:
    """A watch whose clock and news are the test's."""

    def __init__(self, request) -> None:
        self.now, self.news = 1000.0, {}
        self.outbox = Outbox(request, write=lambda *_: None, clock=lambda: self.now)
        self.tally, self.series = StepTally(at=1000.0), Series(request)
        self.tally.begin(0)
        self.series.begin(0)
        self.watch = Watch(request, self.outbox, self.tally, self.series, clock=lambda: self.now)

    def at(self, now: float, **news: object) -> None:
        self.now = now
        self.news.update(news)
        self.watch.turn()

    def told(self) -> dict[str, float]:
        account = Goodput.from_dict(Spent.from_dict(self.outbox.latest.spent).goodput)
        return {name: value for name, value in account.to_result().items() if name.endswith("_s") and value}

    def start(self) -> None:
        self.outbox.tell(phase="waiting for a slice")
        self.at(1004.0)
        assert not self.outbox.latest.spent
        self.now = 1005.0
        self.watch.hold()
        self.outbox.tell(phase="setting up", slice_at=self.now)


@pytest.fixture
def scene(make_request, monkeypatch):
    monkeypatch.setattr(module.relay, "clear", lambda _: None)
    made = Scene(make_request())
    monkeypatch.setattr(module.relay, "collect", lambda _, topic: made.news.get(topic))
    return made


def word(step: int, at: float, **pace: float) -> dict[str, object]:
    pace = {"began": 0, "first": 1, "reached": step, "begun_at": 1012.0, "first_s": 6.0, "blocked_s": 0.0, **pace}
    return {"done": step, "total": 40, "at": at, "metrics": {"loss": 1 / step}, "pace": pace}


def test_a_loop_with_the_helper_is_told_as_it_goes(scene, make_request) -> None:
    scene.start()
    scene.at(1008.0)
    assert (scene.outbox.latest.phase, scene.told()) == ("setting up", {"waiting_s": 5.0, "init_s": 3.0})
    scene.at(1010.0, mesh={"at": 1010.0})
    assert scene.outbox.latest.phase == "compiling"
    assert "never reported a step" in scene.outbox.latest.describe()
    seen = Observation(cluster=ClusterState.READY, job=JobState.RUNNING, progress=scene.outbox.latest)
    verdict = judge(seen, Deadlines().since(0.0), 9000.0)
    assert verdict.message.startswith("A slice was there but nothing was done within 20 min (start): compiling")
    assert "the loop never reported a step" in verdict.message
    scene.at(1018.0, loop=word(1, 1018.0, since_s=0.0))
    assert (scene.outbox.latest.phase, scene.outbox.latest.done, scene.outbox.latest.message) == ("training", 1, "")
    scene.at(1028.0, loop=word(11, 1028.0, since_s=10.0))
    assert scene.told() == {"waiting_s": 5.0, "init_s": 7.0, "compile_s": 5.0, "useful_s": 11.0}
    scene.at(1029.0)
    assert "idle_s" not in scene.told(), "nothing new is not told in each turn"
    scene.at(1039.0)
    assert scene.told()["idle_s"] == 11.0, "but it is told now and then, for whoever counts after a kill"
    assert scene.outbox.latest.at == 1028.0, "and is no progress"
    scene.now = 1040.0
    scene.watch.end()
    assert scene.tally.costs()["held_s"] == 35.0
    assert scene.tally.goodput.idle_s == 12.0
    assert [point.step for point in series(scene.series.uri)] == [1, 11]


def test_a_loop_that_only_reports_is_counted_by_its_reports(scene) -> None:
    scene.start()
    scene.at(1010.0, mesh={"at": 1010.0})
    scene.at(1020.0, report={"done": 1, "at": 1020.0, "metrics": {"loss": 3.0}})
    scene.at(1024.0, report={"done": 3, "at": 1024.0, "metrics": {"loss": 2.0}})
    scene.now = 1025.0
    scene.watch.end()
    assert scene.watch.reported == {"step": 3, "metrics": {"loss": 2.0}}
    account = scene.tally.goodput
    assert (account.init_s, account.compile_s, account.useful_s, account.idle_s) == (5.0, 8.0, 6.0, 1.0)


def test_a_try_that_never_held_a_slice_only_waited(scene) -> None:
    scene.at(1010.0)
    scene.watch.end()
    scene.tally.wait(1020.0)
    assert (scene.tally.goodput.held_s, scene.tally.goodput.waiting_s) == (0.0, 20.0)
