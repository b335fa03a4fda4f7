from __future__ import annotations

from airflow_raytpu.demo import summary
from airflow_raytpu.demo.watch import TaskView


def test_a_whole_run():
    values = {
        "data": {"train": "file:///x"},
        "cluster": None,
        "train": {"step": 300, "devices": 16, "processes": 4},
        "infer": {"rows_in": 1360, "rows_out": 1360},
        "evaluate": {"accuracy": 0.97222, "rows": 360},
        "serve": {"endpoint": "http://127.0.0.1:20001/digits"},
        "query": {"status": 200, "answer": {"digit": 7}, "label": 7},
    }
    assert "\n".join(summary.results(values)).splitlines() == [
        "  trained        300 steps on 16 devices of 4 processes",
        "  test accuracy  0.9722",
        "  rows           1,360 in, 1,360 out",
        "  served at      http://127.0.0.1:20001/digits",
        '  it answered    200 {"digit": 7}; the digit is 7',
    ]


def test_a_run_that_broke_off_tells_what_there_is():
    assert summary.results({"train": None, "query": "not a mapping"}) == []


def test_only_those_that_failed_by_themselves():
    tasks = [TaskView(task_id=name, state=name) for name in ("success", "failed", "upstream_failed", "skipped")]
    assert [task.task_id for task in summary.failures(tasks)] == ["failed"]
