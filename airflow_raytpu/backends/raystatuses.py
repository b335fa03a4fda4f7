"""The words of Ray's Jobs API (Ray 2.60), put into ours. Pure; no other module reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_raytpu.model.observation import JobState

_JOB = {
    "PENDING": JobState.QUEUED,
    "RUNNING": JobState.RUNNING,
    "SUCCEEDED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "STOPPED": JobState.STOPPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One submission.

    :param message: Ray's own words about its state; of a failed job, the end of its log as well.
    :param metadata: what was handed over when it was submitted.
    """

    state: JobState
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


def job_state(word: str) -> JobState:
    """A word that is not known, a newer Ray's, is neither success nor failure."""
    return _JOB.get(word, JobState.UNRECOGNISED)


def job(data: Mapping[str, Any]) -> Job:
    """The answer to ``GET /api/jobs/<id>``."""
    word = str(data.get("status"))
    message = data.get("message") or ""
    state = job_state(word)
    return Job(
        state=state,
        message=message if state is not JobState.UNRECOGNISED else f"Ray says {word}. {message}".strip(),
        metadata=data.get("metadata") or {},
    )
