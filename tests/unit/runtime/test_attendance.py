"""Work that nobody looks at: by its own clock, and never for trouble of storage's."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_raytpu.runtime.attendance import Attendance

LONG = 3 * 300.0


class Stage:
    def __init__(self, request: Any) -> None:
        self.at, self.sign, self.ended = 0.0, None, 0
        self.attendance = Attendance(request, end=self.end, read=self.read, clock=lambda: self.at)

    def end(self) -> None:
        self.ended += 1

    def read(self, uri: str) -> Any:
        assert uri.endswith(".beat.json")
        if isinstance(self.sign, Exception):
            raise self.sign
        return self.sign

    def is_over(self, at: float, sign: Any) -> bool:
        self.at, self.sign = at, sign
        return self.attendance.is_over()


@pytest.fixture
def stage(make_request: Any) -> Stage:
    return Stage(make_request())


def test_it_ends_when_the_sign_has_not_changed_for_too_long(stage: Stage) -> None:
    assert not stage.is_over(0, {"at": 1})
    assert not stage.is_over(LONG, {"at": 1})
    assert stage.is_over(LONG + 1, {"at": 1})


def test_every_change_counts_whatever_time_it_tells(stage: Stage) -> None:
    for step in range(5):
        assert not stage.is_over(step * LONG, {"at": 1000 - step})


def test_where_there_was_never_a_sign_nobody_is_missed(stage: Stage) -> None:
    assert not stage.is_over(10 * LONG, None)


def test_a_sign_that_was_taken_away_ends_nothing(stage: Stage) -> None:
    assert not stage.is_over(0, {"at": 1})
    assert not stage.is_over(10 * LONG, None)
    assert not stage.is_over(20 * LONG, None)


@pytest.mark.parametrize("trouble", [OSError("503"), ValueError("half a file")])
def test_trouble_of_storage_blames_nobody(stage: Stage, trouble: Exception) -> None:
    assert not stage.is_over(0, {"at": 1})
    assert not stage.is_over(LONG + 1, trouble)
    assert not stage.is_over(2 * LONG, {"at": 1})
    assert stage.is_over(2 * LONG + 2, {"at": 1})


def test_the_thread_ends_the_work_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        assert 0 < seconds <= 30
        stage.at += 10 * seconds

    monkeypatch.setattr("airflow_raytpu.runtime.attendance.time.sleep", sleep)
    stage.sign = {"at": 1}
    stage.attendance._run()
    assert stage.ended == 1
    assert stage.at > LONG
