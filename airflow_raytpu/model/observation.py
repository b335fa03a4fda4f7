"""What was seen: facts only, in our own words, with no meaning put on them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_raytpu.model import reading
from airflow_raytpu.model.result import Outcome


class ClusterState(enum.Enum):
    ABSENT = "absent"
    STARTING = "starting"
    READY = "ready"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    FAILED = "failed"
    UNRECOGNISED = "unrecognised"


class JobState(enum.Enum):
    ABSENT = "absent"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    UNRECOGNISED = "unrecognised"

    @property
    def ended(self) -> bool:
        return self in {JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The newest word from the runtime. Times are seconds since the epoch, by the cluster's clock.

    :param phase: what it is doing: ``waiting for a slice``, ``training``, ``inferring``, ``deploying`` ...
    :param done: how far, of ``total``, in ``unit`` (steps, rows, requests); 0 of 0 where nothing is counted.
    :param rate: units per second, lately; 0 where unknown.
    :param slice_at: when a whole slice was held; 0 while none is.
    :param first_at: when the first unit was done; 0 before that.
    :param at: when the last unit was done or the phase last changed.
    :param spent: what it has cost so far, as :class:`airflow_raytpu.model.spent.Spent` writes it; may be empty.
    """

    request: str
    phase: str
    at: float
    done: int = 0
    total: int = 0
    unit: str = ""
    rate: float = 0.0
    slice_at: float = 0.0
    first_at: float = 0.0
    message: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    spent: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Progress:
        """Unknown keys, a newer writer's, are left aside.

        :raises RequestError: it is no progress.
        """
        return reading.newer("progress", cls, data)

    def describe(self) -> str:
        """One line for a log: ``step 1,400/2,000  loss 0.213  13.5 steps/s  ETA 0:44  (message)``."""
        parts = [self.phase]
        if self.total:
            parts.append(f"{self.unit} {self.done:,}/{self.total:,}".strip())
        elif self.done:
            parts.append(f"{self.unit} {self.done:,}".strip())
        parts += [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        if self.rate > 0:
            parts.append(f"{self.rate:,.4g} {self.unit}s/s")
            if self.total > self.done:
                minutes, seconds = divmod(round((self.total - self.done) / self.rate), 60)
                parts.append(f"ETA {minutes}:{seconds:02d}")
        if self.message:
            parts.append(self.message)
        return "  ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why the place can never become what was asked for, however long one waits: a fact, not a guess.

    :param code: code of an error of :mod:`airflow_raytpu.model.errors`.
    :param cause: one sentence with its number.
    :param lever: what the reader can do about it.
    """

    code: str
    cause: str
    lever: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look at one request.

    :param reachable: ``False`` when the backend gave no answer; then nothing else here counts.
    :param job: ``None`` for a request that is a cluster and no more.
    :param outcome: the result file, where one is there and names this request.
    :param facts: what a ready cluster offers (JSON): ``address``, ``dashboard``, ``endpoint``, ``slices``.
    :param detail: the backend's own words, for people.
    :param lacking: what a ready cluster still lacks of what was asked for; empty where it has it all.
    :param in_use: somebody else works on that cluster, so it must not be taken away.
    :param began: when the present run of the job began, by the cluster's clock; 0 where that is not known. Progress
        from before it is of a run that was suspended or lost.
    :param fault: what makes further waiting useless; ``None`` while time may still mend it.
    """

    cluster: ClusterState
    job: JobState | None = None
    progress: Progress | None = None
    outcome: Outcome | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""
    reachable: bool = True
    lacking: str = ""
    in_use: bool = False
    began: float = 0.0
    fault: Fault | None = None

    @classmethod
    def unreachable(cls, detail: str) -> Observation:
        return cls(cluster=ClusterState.UNRECOGNISED, reachable=False, detail=detail)
