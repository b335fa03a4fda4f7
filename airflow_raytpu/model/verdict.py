"""What it means: the one pure function from what was seen to what to do."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_raytpu.model import errors
from airflow_raytpu.model.deadlines import Limits
from airflow_raytpu.model.observation import ClusterState, JobState, Observation, Progress


class Phase(enum.Enum):
    """Where a request stands. ``LOST`` is a failure of the place, not of the work."""

    WAITING = ("waiting", False)
    RUNNING = ("running", False)
    SUCCEEDED = ("succeeded", True)
    FAILED = ("failed", True)
    LOST = ("lost", True)

    def __init__(self, label: str, final: bool) -> None:
        self.label = label
        self.final = final


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an observation means.

    :param message: one line for the log, or the cause of a failure.
    :param code: the error's code where it failed.
    :param stop: the remote work may still be running and must be stopped.
    :param again: the place lost it, so that another attempt may go well.
    """

    phase: Phase
    message: str
    code: str = ""
    lever: str = ""
    traceback: str = ""
    value: Mapping[str, Any] = field(default_factory=dict)
    stop: bool = False
    again: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "phase": self.phase.name,
            "message": self.message,
            "code": self.code,
            "lever": self.lever,
            "traceback": self.traceback,
            "value": dict(self.value),
            "stop": self.stop,
            "again": self.again,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        return cls(**{**data, "phase": Phase[data["phase"]]})

    def error(self) -> errors.RayTpuError:
        """The exception that this failure is. The author's frames come last, where people look first."""
        return errors.from_code(self.code, self.message, self.lever, self.traceback)


def judge(seen: Observation, limits: Limits, now: float) -> Verdict:
    """What *seen* means at *now* (seconds since the epoch). Pure: the same input gives the same verdict.

    Success is the job's own success together with its result file, or a ready cluster. An unknown word is
    never success; it waits until a deadline decides.
    """
    if seen.reachable:
        final = _told(seen) or _ended(seen)
        if final is not None:
            return final
    overdue = _overdue(seen, limits, now)
    if overdue is not None and seen.in_use:
        return replace(overdue, stop=False)
    return overdue or _under_way(seen)


def _told(seen: Observation) -> Verdict | None:
    """An end that comes with its cause."""
    # A result file outranks every status: it is written last, by the work itself, and the statuses lag behind it.
    if seen.outcome is not None and not seen.outcome.succeeded:
        return Verdict(
            phase=Phase.FAILED,
            message=seen.outcome.cause,
            code=seen.outcome.code,
            lever=seen.outcome.lever,
            traceback=seen.outcome.traceback,
            stop=not (seen.job and seen.job.ended),
            again=seen.outcome.code == errors.LostError.code,
        )
    if seen.fault is None or seen.job is JobState.SUCCEEDED:
        return None
    fault = seen.fault
    return Verdict(phase=Phase.FAILED, message=fault.cause, code=fault.code, lever=fault.lever, stop=not seen.in_use)


def _ended(seen: Observation) -> Verdict | None:
    if seen.job is None:
        return _ended_cluster(seen)
    match seen.job:
        case JobState.SUCCEEDED if seen.outcome is not None:
            return Verdict(phase=Phase.SUCCEEDED, message="succeeded", value=seen.outcome.value)
        case JobState.SUCCEEDED:
            return Verdict(
                phase=Phase.FAILED,
                message="The job says it succeeded but left no result, so nothing proves it.",
                code=errors.NoResultError.code,
                lever="Look for a call of os._exit or sys.exit(0) in the code, and at the end of the job's log.",
            )
        case JobState.FAILED:
            return Verdict(
                phase=Phase.LOST,
                message=f"The job's driver ended without a result. {seen.detail}".strip(),
                code=errors.LostError.code,
                lever="The job's log shows its last words; a killed head or driver process leaves none.",
                again=True,
            )
        case JobState.STOPPED:
            return Verdict(
                phase=Phase.FAILED,
                message=f"The job was stopped by somebody else. {seen.detail}".strip(),
                code=errors.NoResultError.code,
                lever="See who stopped it in the Ray dashboard; clear the task to run it again.",
            )
        case JobState.ABSENT:
            return _lost("The job is gone from its cluster.", seen)
    if seen.cluster is ClusterState.ABSENT:
        return _lost("The cluster under the job is gone.", seen)
    if seen.cluster is ClusterState.FAILED:
        return _broken(seen)
    return None


def _ended_cluster(seen: Observation) -> Verdict | None:
    match seen.cluster:
        case ClusterState.READY if not seen.lacking:
            return Verdict(phase=Phase.SUCCEEDED, message="ready", value=seen.facts)
        case ClusterState.ABSENT:
            return _lost("The cluster is gone.", seen)
        case ClusterState.FAILED:
            return _broken(seen)
    return None


def _lost(what: str, seen: Observation) -> Verdict:
    return Verdict(
        phase=Phase.LOST,
        message=f"{what} {seen.detail}".strip(),
        code=errors.LostError.code,
        lever="Nothing of it is left to stop. Run the task again: it goes on from its last checkpoint or part.",
        again=True,
    )


def _broken(seen: Observation) -> Verdict:
    return Verdict(
        phase=Phase.LOST,
        message=f"The cluster could not be brought up. {seen.detail}".strip(),
        code=errors.ClusterError.code,
        lever="The cluster's own log has the first error.",
        stop=True,
        again=True,
    )


def _overdue(seen: Observation, limits: Limits, now: float) -> Verdict | None:
    """The first deadline that has passed, the tightest first."""
    progress = _present(seen)
    where = _where(seen)
    if now > limits.total_until:
        return _late(
            errors.TotalTimeout, f"Not finished within {_span(limits.total_s)} (total): {where}.", "Raise total."
        )
    if not seen.reachable and progress is None:
        # Nothing is known, so nothing can be called late: a job that has long had its slice looks the same.
        return None
    if not _has_slice(seen):
        if now > _slice_until(seen, limits):
            return _late(
                errors.NoSliceError,
                f"No whole slice within {_span(limits.slice_wait_s)} (slice_wait): {where}.",
                "Raise slice_wait, free a slice, or ask for a smaller one.",
            )
        return None
    if progress is None:
        return None
    if not progress.first_at:
        if now > (progress.slice_at or progress.at) + limits.start_s:
            return _late(
                errors.StartTimeout,
                f"A slice was there but nothing was done within {_span(limits.start_s)} (start): {where}.",
                "Raise start if compiling takes longer; the job's log shows where each host is.",
            )
    elif now > progress.at + limits.stall_s:
        return _late(
            errors.StallTimeout,
            f"No progress for {_span(now - progress.at)} (stall is {_span(limits.stall_s)}): {where}.",
            "Raise stall if one unit takes longer; else look for a host that is missing or waiting.",
        )
    return None


def _late(kind: type[errors.RayTpuError], message: str, lever: str) -> Verdict:
    return Verdict(phase=Phase.FAILED, message=message, code=kind.code, lever=lever, stop=True)


def _has_slice(seen: Observation) -> bool:
    progress = _present(seen)
    return progress is not None and progress.slice_at > 0


def _present(seen: Observation) -> Progress | None:
    """Its progress, unless that is of a run whose slice was taken away: it was suspended, or begins anew."""
    progress = seen.progress
    if progress is None or (seen.job is not JobState.QUEUED and progress.at >= seen.began):
        return progress
    return None


def _slice_until(seen: Observation, limits: Limits) -> float:
    """A slice that was taken away is waited for anew, since the last that was heard of the work."""
    taken_at = seen.progress.at if seen.progress is not None and _present(seen) is None else limits.asked_at
    return max(limits.asked_at, taken_at) + limits.slice_wait_s


def _under_way(seen: Observation) -> Verdict:
    running = _has_slice(seen) and seen.job is JobState.RUNNING
    return Verdict(phase=Phase.RUNNING if running else Phase.WAITING, message=_where(seen))


def _where(seen: Observation) -> str:
    if not seen.reachable:
        return f"no answer from the backend ({seen.detail})"
    progress = _present(seen)
    if progress is not None:
        return progress.describe()
    if seen.lacking:
        return seen.lacking
    state = seen.job.value if seen.job is not None else seen.cluster.value
    what = "job" if seen.job is not None else "cluster"
    return f"{what} {state}" + (f": {seen.detail}" if seen.detail else "")


def _span(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole / 60:.3g} min"
    return f"{whole / 3600:.3g} h"
