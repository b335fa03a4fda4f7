"""What Airflow's own metrics are told, by a logger that they write to."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.observability import stats

from airflow_raytpu.model.errors import BackendUnreachable, UserCodeError
from airflow_raytpu.model.goodput import Goodput
from airflow_raytpu.model.observation import Progress
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.spent import Spent
from airflow_raytpu.model.verdict import judge
from airflow_raytpu.operators import JaxTrainerOperator, RayTpuClusterOperator
from airflow_raytpu.storage import attempts, objects
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, failed, ready, running, succeeded

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
GOODPUT = Goodput(useful_s=60, init_s=4, compile_s=3, saving_s=2, redone_s=30, idle_s=1, waiting_s=5)
VALUE = {
    "step": 3,
    "chip_hours": 2.0,
    "evictions": 2,
    "failures": 0,
    "held_s": 100.0,
    "lost_s": 30.0,
    "causes": ["x"],
    "goodput": GOODPUT.to_result(),
}


@dataclass
class Told:
    """A statsd that keeps what it hears."""

    heard: list[tuple[str, float, dict[str, str]]] = field(default_factory=list)

    def incr(self, stat: str, count: int = 1, rate: float = 1, *, tags: Any = None) -> None:
        self.heard.append((stat, count, dict(tags or {})))

    def timing(self, stat: str, dt: Any, *, tags: Any = None) -> None:
        self.heard.append((stat, dt.total_seconds(), dict(tags or {})))

    def values(self) -> dict[str, float]:
        return {name: value for name, value, _ in self.heard}


@pytest.fixture
def told() -> Iterator[Told]:
    recorder = Told()
    stats.initialize(factory=lambda: recorder, export_legacy_names=True)
    yield recorder
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger

    stats.initialize(factory=NoStatsLogger, export_legacy_names=True)


async def ended(
    operator, place_with, seen, *, progress: dict[str, float] | None = None, spent: dict[str, Any] | None = None
) -> RayRequest:
    """One attempt: deferred, and concluded on *seen* with what is in its outbox by then."""
    backend, ti = ScriptedBackend([running(at=time.time())]), TaskInstance(task_id=operator.task_id)
    place_with(backend)
    with pytest.raises(TaskDeferred) as caught:
        await operator.aexecute(context(ti))
    request = RayRequest.from_dict(caught.value.trigger.request)
    if progress is not None:
        asked = request.limits.asked_at
        times = {name: asked + after for name, after in progress.items()}
        word = Progress(request=request.name, phase="training", done=3, unit="step", spent=spent or {}, **times)
        objects.write_json(request.outbox("progress"), word.to_dict())
    finish(operator, ti, request, seen)
    return request


def finish(operator, ti, request: RayRequest, seen) -> None:
    verdict = judge(seen, request.limits, time.time())
    event = {"request": request.outbox("request"), "verdict": verdict.to_dict(), "links": {}}
    try:
        operator.finish(context(ti), event=event)
    except UserCodeError:
        return


def train(**more: Any) -> JaxTrainerOperator:
    return JaxTrainerOperator(**{"task_id": "train", "train_loop": "json:dumps", "slice": "v6e:4x4", **more})


async def test_an_attempt_tells_once_what_it_took(place_with, told: Told) -> None:
    request = await ended(train(), place_with, succeeded(VALUE), progress={"slice_at": 40, "first_at": 55, "at": 100})
    assert told.values() == {
        "raytpu.attempts": 1,
        "raytpu.provision": pytest.approx(40),
        "raytpu.start": pytest.approx(15),
        "raytpu.run": pytest.approx(60),
        "raytpu.waiting": 5.0,
        "raytpu.init": 4.0,
        "raytpu.compile": 3.0,
        "raytpu.useful": 60.0,
        "raytpu.saving": 2.0,
        "raytpu.lost": 30.0,
        "raytpu.idle": 1.0,
        "raytpu.chip_seconds": 7200,
        "raytpu.evictions": 2,
    }
    tags = {"dag_id": "digits", "task_id": "train", "kind": "train", "slice": "v6e:4x4"}
    assert all(tags.items() <= each.items() for _, _, each in told.heard)
    assert told.heard[0][2]["outcome"] == "succeeded"
    before = list(told.heard)
    finish(train(), TaskInstance(), request, succeeded(VALUE))
    assert told.heard == before, "a try that is given the same end again tells nothing"


async def test_on_a_cluster_that_is_there_the_wait_is_a_queue(place_with, told: Told) -> None:
    await ended(
        train(cluster="shared"), place_with, succeeded(VALUE), progress={"slice_at": 40, "first_at": 55, "at": 100}
    )
    assert told.values()["raytpu.queue"] == pytest.approx(40)
    assert "raytpu.provision" not in told.values()


async def test_a_failure_tells_its_code_and_the_chips_it_took(place_with, told: Told) -> None:
    await ended(train(), place_with, failed(), progress={"slice_at": 10, "first_at": 20, "at": 70})
    assert told.heard[0] == (
        "raytpu.attempts",
        1,
        {
            "dag_id": "digits",
            "task_id": "train",
            "kind": "train",
            "slice": "v6e:4x4",
            "outcome": "failed",
            "code": "RT301",
        },
    )
    assert told.values()["raytpu.chip_seconds"] == 16 * 60
    assert "raytpu.useful" not in told.values()


async def test_a_failed_elastic_run_tells_the_chips_of_the_slices_that_it_held(place_with, told: Told) -> None:
    # Two minutes on two of three slices, by what the loop told of it.
    spent = Spent(held_s=80, goodput=Goodput(useful_s=80).to_dict()).to_dict()
    progress = {"slice_at": 10, "first_at": 20, "at": 130}
    await ended(train(elastic=(1, 3)), place_with, failed(), progress=progress, spent=spent)
    assert told.values()["raytpu.chip_seconds"] == 3 * 16 * 80


@pytest.mark.parametrize("progress", [None, {"slice_at": -1e9, "at": 0.0}])
async def test_what_is_not_known_is_not_told_and_nothing_is_negative(place_with, told: Told, progress: Any) -> None:
    await ended(train(), place_with, failed(), progress=progress)
    assert told.values()["raytpu.attempts"] == 1
    assert all(value >= 0 for value in told.values().values())
    assert progress or set(told.values()) == {"raytpu.attempts"}


async def test_a_cluster_tells_how_long_it_took_to_be_there(place_with, told: Told) -> None:
    cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
    backend, ti = ScriptedBackend([ready(address="a:1", slices=[])]), TaskInstance(task_id="cluster")
    place_with(backend)
    await cluster.aexecute(context(ti))
    assert set(told.values()) == {"raytpu.attempts", "raytpu.provision"}
    assert 0 <= told.values()["raytpu.provision"] < timedelta(minutes=1).total_seconds()


async def test_storage_in_trouble_costs_the_metrics_and_not_the_result(place_with, told: Told, monkeypatch) -> None:
    def silent(request: RayRequest) -> bool:
        raise BackendUnreachable("503")

    monkeypatch.setattr(attempts, "first_to_tell", silent)
    backend = ScriptedBackend([succeeded(VALUE)])
    place_with(backend)
    assert await train().aexecute(context(TaskInstance())) == VALUE
    assert told.heard == []


async def test_every_name_is_in_the_documentation_and_no_other(place_with, told: Told) -> None:
    value = VALUE | {"failures": 1}
    times = {"slice_at": 40, "first_at": 55, "at": 100}
    await ended(train(), place_with, succeeded(value), progress=times)
    await ended(train(task_id="other", cluster="shared"), place_with, succeeded(value), progress=times)
    assert set(told.values()) == set(re.findall(r"^\| `(raytpu\.\w+)` \|", PAGE.read_text(), re.MULTILINE))
