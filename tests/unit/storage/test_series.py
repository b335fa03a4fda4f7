"""The series of a run, from the driver that writes it to whoever plots it."""

from __future__ import annotations

from airflow_raytpu.runtime.series import Series
from airflow_raytpu.storage.series import series
from tests.simulated_cluster import job_request


def word(step: int, loss: float = 1.0) -> dict[str, object]:
    return {"done": step, "total": 9, "at": 100.0 + step, "rate": 2.0, "metrics": {"loss": loss, "bad": float("nan")}}


def test_attempts_and_drivers_that_are_started_anew_make_one_series(tmp_path) -> None:
    first = Series(job_request("t", tmp_path, ""))
    assert series(first.uri) == []
    first.begin(0)
    for step in (1, 2, 3):
        first.add(word(step))
    first.flush(50.0)
    again = Series(job_request("t", tmp_path, ""))
    again.begin(2)
    again.add(word(3, 5.0))
    again.flush(60.0)
    second = Series(job_request("t", tmp_path, "", attempt=2))
    second.begin(3)
    second.add(word(4))
    second.flush(70.0, at_once=True)

    points = series(second.uri)

    assert [(each.step, each.metrics) for each in points] == [
        (1, {"loss": 1.0}),
        (2, {"loss": 1.0}),
        (3, {"loss": 5.0}),
        (4, {"loss": 1.0}),
    ]
    assert (points[0].at, points[0].rate) == (101.0, 2.0)
    assert [path.name for path in sorted((tmp_path / "metrics").iterdir())] == ["1.jsonl", "2.jsonl"]


def test_it_is_written_now_and_then_and_a_refusal_is_made_good(tmp_path, caplog) -> None:
    written: list[bytes] = []
    troubles = [OSError("no space"), None, None, None]

    def write(uri: str, data: bytes) -> None:
        if trouble := troubles.pop(0):
            raise trouble
        written.append(data)

    made = Series(job_request("t", tmp_path, ""), write=write)
    made.flush(100.0)
    for second, step in enumerate(range(1, 25)):
        made.add(word(step))
        made.flush(100.0 + second)
    made.flush(124.0, at_once=True)
    made.flush(999.0, at_once=True)

    assert "could not be written: no space" in caplog.text
    # At 100 s it was refused, at 110 s and 120 s it was written, and the end at once; then there is nothing new.
    assert [data.count(b'"step"') for data in written] == [11, 21, 24]
