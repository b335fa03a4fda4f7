from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from airflow_raytpu.demo import watch
from airflow_raytpu.model.observation import Progress

NOW = datetime(2026, 11, 29, 12, 0, 30, tzinfo=UTC)
TRAINING = Progress(request="r", phase="training", at=1.0, done=50, total=100, unit="step", metrics={"loss": 0.5})


def test_tasks_stand_after_what_they_wait_for():
    graph = {"serve": ["query"], "cluster": ["train"], "data": ["train"], "train": ["serve"], "query": []}
    placed = watch.order(graph)
    assert sorted(placed) == sorted(graph)
    for task, after in graph.items():
        assert all(placed.index(task) < placed.index(other) for other in after)


def test_an_order_that_cannot_be_is_left_as_it_is():
    assert watch.order({"a": ["b"], "b": ["a"]}) == ["a", "b"]


def test_a_task_is_shown_with_its_time_and_progress():
    instance = {"task_id": "train", "state": "deferred", "try_number": 2, "start_date": "2026-11-29T12:00:00Z"}
    (view,) = watch.views(["train"], [instance], {"train": TRAINING}, "ready", NOW)
    assert (view.elapsed_s, view.try_number, view.active, view.ended) == (30.0, 2, True, False)
    assert view.note() == "training  step 50/100  loss 0.5"


def test_an_ended_task_keeps_its_own_time():
    instance = {
        "task_id": "data",
        "state": "success",
        "try_number": 1,
        "start_date": "2026-11-29T12:00:00Z",
        "end_date": "2026-11-29T12:00:01.5Z",
    }
    (view,) = watch.views(["data"], [instance], {}, "starting", NOW)
    assert (view.elapsed_s, view.ended, view.note()) == (1.5, True, "")


def test_a_task_that_is_not_known_yet_is_shown_all_the_same():
    (view,) = watch.views(["query"], [], {}, "", NOW)
    assert (view.state, view.elapsed_s, view.note()) == ("", 0.0, "")


def test_a_state_from_the_future_is_neither_active_nor_ended():
    (view,) = watch.views(["x"], [{"task_id": "x", "state": "STATE-FROM-THE-FUTURE"}], {}, "", NOW)
    assert not view.active
    assert not view.ended


def test_the_cluster_speaks_for_a_task_that_has_no_progress():
    (view,) = watch.views(["cluster"], [{"task_id": "cluster", "state": "deferred"}], {}, "starting: 3 of 4", NOW)
    assert view.note() == "starting: 3 of 4"


def test_the_newest_progress_of_a_run_is_read(tmp_path: Path):
    run = "manual__2026-11-29T12:00:00+00:00"
    for name, at in (("attempt-1", 1.0), ("attempt-2", 2.0)):
        _outbox(tmp_path, run, name, {**TRAINING.to_dict(), "at": at, "phase": name, "of a newer writer": 1})
    _outbox(tmp_path, "another run", "x", {**TRAINING.to_dict(), "at": 9.0})
    found = watch.read_progress(tmp_path, "digits", run, ["train", "infer"])
    assert {task: word.phase for task, word in found.items()} == {"train": "attempt-2"}


def test_no_cluster_and_foreign_folders_say_nothing(tmp_path: Path):
    assert watch.describe_clusters(tmp_path / "missing") == ""
    (tmp_path / "foreign").mkdir()
    assert watch.describe_clusters(tmp_path) == ""


def _outbox(storage: Path, run: str, name: str, progress: dict[str, object]) -> None:
    from airflow_raytpu.model.identity import Identity

    identity = Identity(deployment="demo", dag_id="digits", task_id="train", run_id=run)
    folder = storage / identity.storage_path() / "outbox"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.progress.json").write_text(json.dumps(progress))
