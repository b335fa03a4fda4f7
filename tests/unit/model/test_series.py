"""A run's metrics over its steps: bounded, each step once, and what was done again stands for what was lost."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.model.series import Attempt, Point, merged, of_files


def point(step: int, loss: float = 1.0) -> Point:
    return Point(step=step, at=1000.0 + step, rate=2.0, metrics={"loss": loss})


def attempt(began: int, *steps: int, loss: float = 1.0, limit: int = 2000) -> Attempt:
    made = Attempt(limit=limit)
    made.begin(began)
    for step in steps:
        made.add(point(step, loss))
    return made


def test_what_is_done_again_replaces_what_was_told_before() -> None:
    one = attempt(0, 1, 2, 3, 4, 5, 6, loss=1.0)
    one.begin(4)
    one.add(point(5, 2.0))
    two = attempt(3, 4, 5, 6, loss=3.0)
    points = merged([one, two])
    assert [(each.step, each.metrics["loss"]) for each in points] == [
        (1, 1.0), (2, 1.0), (3, 1.0), (4, 3.0), (5, 3.0), (6, 3.0)
    ]  # fmt: skip
    afresh = merged([one, two, attempt(0, 1)])
    assert [each.step for each in afresh] == [1]


def test_more_of_the_same_step_replaces_it() -> None:
    one = attempt(0, 1, 2)
    one.add(point(2, 9.0))
    assert [each.metrics["loss"] for each in one.points] == [1.0, 9.0]


@pytest.mark.parametrize("count", [9, 100, 1001])
def test_a_long_series_is_thinned_evenly_and_keeps_its_ends(count: int) -> None:
    steps = [each.step for each in attempt(0, *range(1, count + 1), limit=10).points]
    assert len(steps) <= 12
    assert (steps[0], steps[-1]) == (1, count)
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps)]
    assert max(gaps) <= 2 * min(gaps[:-1], default=1)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6), st.integers(2, 9))
def test_each_step_is_there_once_and_in_order(runs, limit: int) -> None:
    files, one = {}, Attempt(limit=limit)
    for number, (began, count) in enumerate(runs, 1):
        if number % 3 == 0:
            one = Attempt(limit=limit)  # an attempt of several tries, then another
        one.begin(began)
        for step in range(began + 1, began + count + 1):
            one.add(point(step))
        files[f"{number // 3 + 1}.jsonl"] = one.text()
    steps = [each.step for each in of_files(files)]
    assert steps == sorted(set(steps))
    began, count = runs[-1]
    assert not count or steps[-1] == began + count


def test_a_file_is_read_as_it_was_written_and_gone_on_with() -> None:
    one = attempt(5, 6, 7, 8)
    again = Attempt(one.text())
    assert (again.began, again.points) == (5, one.points)
    again.begin(7)
    again.add(point(8, 4.0))
    assert [each.metrics["loss"] for each in again.points] == [1.0, 1.0, 4.0]
    assert json.loads(one.text().splitlines()[0]) == {"from": 5}


def test_lines_that_cannot_be_read_and_files_of_others_are_left_aside() -> None:
    text = attempt(0, 1, 2).text().replace('"step": 1', '"step": "x"') + "\x00torn\n[1]\n"
    found = of_files({"10.jsonl": attempt(2, 3).text(), "2.jsonl": text, "notes.txt": "x", "a.jsonl": "{}"})
    assert [each.step for each in found] == [2, 3]
