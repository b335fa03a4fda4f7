from __future__ import annotations

import pytest

from airflow_raytpu.backends import raystatuses
from airflow_raytpu.model.observation import JobState


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", JobState.QUEUED),
        ("RUNNING", JobState.RUNNING),
        ("SUCCEEDED", JobState.SUCCEEDED),
        ("FAILED", JobState.FAILED),
        ("STOPPED", JobState.STOPPED),
        ("PAUSED", JobState.UNRECOGNISED),
        ("succeeded", JobState.UNRECOGNISED),
        ("", JobState.UNRECOGNISED),
    ],
)
def test_each_word_has_one_meaning(word: str, state: JobState) -> None:
    assert raystatuses.job_state(word) is state


def test_a_job_tells_what_ray_tells() -> None:
    found = raystatuses.job({"status": "FAILED", "message": "exit code 1", "metadata": {"a": "b"}})
    assert (found.state, found.message, found.metadata) == (JobState.FAILED, "exit code 1", {"a": "b"})


def test_missing_fields_are_empty() -> None:
    found = raystatuses.job({"status": "RUNNING", "message": None, "metadata": None})
    assert (found.message, found.metadata) == ("", {})


def test_an_unknown_word_is_shown() -> None:
    found = raystatuses.job({"status": "PAUSED", "message": "why"})
    assert (found.state, found.message) == (JobState.UNRECOGNISED, "Ray says PAUSED. why")
    assert raystatuses.job({}).state is JobState.UNRECOGNISED
