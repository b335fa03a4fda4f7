"""What a RayJob is: its two status fields, which do not move together, and the reason beside them (KubeRay 1.7). Pure.

``jobStatus`` is what Ray says of the job, ``jobDeploymentStatus`` what KubeRay does with it. Only the first knows of
success: ``Complete`` is also what a stopped job comes to.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_raytpu.backends.kuberay.observing.reading import Object, at, behind, line, moment, number, parts, text
from airflow_raytpu.model.errors import ManifestError, NoSliceError, StartTimeout, TotalTimeout
from airflow_raytpu.model.observation import ClusterState, Fault, JobState

_OVER = {"Complete", "Failed"}
_BEFORE = {"", "Initializing", "Waiting", "Suspending", "Suspended", "Retrying"}
"""Where an end that is told is that of an earlier run, if it is any."""
_SUSPENDED = {"Suspending", "Suspended"}
_KNOWN = {*_OVER, *_BEFORE, "Running", "ValidationFailed"}
_STATES = {
    "": JobState.QUEUED,
    "PENDING": JobState.QUEUED,
    "RUNNING": JobState.RUNNING,
    "FAILED": JobState.FAILED,
    "STOPPED": JobState.STOPPED,
    "SUCCEEDED": JobState.SUCCEEDED,
}
_LOST = {
    "JobStatusCheckTimeoutExceeded": "KubeRay got no word of the job for 5 minutes",
    "JobDeploymentStatusTransitionGracePeriodExceeded": "KubeRay and Ray did not agree about the job for 5 minutes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Its state.

    :param place: what is known of the cluster from the job alone; ``None`` leaves it to the cluster.
    :param detail: KubeRay's words.
    """

    state: JobState
    detail: str = ""
    place: ClusterState | None = None
    fault: Fault | None = None


def standing(job: Object) -> Standing:
    """How *job*, a RayJob that exists, stands."""
    status, deployment = text(job, "status", "jobStatus"), text(job, "status", "jobDeploymentStatus")
    said = _said(job)
    if status == "SUCCEEDED":
        return Standing(state=JobState.SUCCEEDED, detail=said)
    if deployment == "ValidationFailed":
        return Standing(state=JobState.FAILED, detail=said, fault=_refused(job))
    if deployment == "Failed":
        return _failed(job, status, said)
    if deployment in _SUSPENDED or at(job, "spec", "suspend") is True:
        return Standing(state=JobState.QUEUED, detail=said, place=ClusterState.SUSPENDED)
    if deployment not in _KNOWN or status not in _STATES:
        return Standing(state=JobState.UNRECOGNISED, detail=line(f"KubeRay says {deployment!r}, {status!r}. {said}"))
    if deployment in _BEFORE:
        return Standing(state=JobState.QUEUED, detail=said)
    return Standing(state=_now(job, status, deployment), detail=said)


def started_at(job: Object) -> float:
    """When Ray started the job, in seconds since the epoch; 0 where that is not known."""
    return moment(job, "status", "rayJobInfo", "startTime")


def is_submitted(job: Object) -> bool:
    """Ray has, or had, the job."""
    deployment = text(job, "status", "jobDeploymentStatus")
    return bool(text(job, "status", "jobStatus")) and deployment in {"Running", *_OVER}


def _now(job: Object, status: str, deployment: str) -> JobState:
    """Of a job that is running, or said to be complete."""
    state = _STATES[status]
    if not state.ended:
        # Complete without an end of the job: the two contradict one another, and Ray has to be asked.
        return state if deployment == "Running" else JobState.UNRECOGNISED
    retried = state is JobState.FAILED and _will_retry(job)
    # Kueue stops a job to suspend it, and that KubeRay has seen this comes a moment later.
    suspended = state is JobState.STOPPED and at(job, "status", "observedGeneration") is not None and behind(job)
    return JobState.QUEUED if deployment == "Running" and (retried or suspended) else state


def _will_retry(job: Object) -> bool:
    """KubeRay begins again on a new cluster; never for our own manifests."""
    return number(job, "status", "failed") < number(job, "spec", "backoffLimit")


def _failed(job: Object, status: str, said: str) -> Standing:
    reason = text(job, "status", "reason")
    if reason in {"DeadlineExceeded", "PreRunningDeadlineExceeded"}:
        return Standing(state=JobState.FAILED, detail=said, fault=_late(job, reason))
    if reason == "ValidationFailed":
        return Standing(state=JobState.FAILED, detail=said, fault=_refused(job))
    if status in {"FAILED", "STOPPED"}:
        return Standing(state=_STATES[status], detail=said)
    if reason in _LOST:
        return Standing(state=JobState.ABSENT, detail=line(f"{_LOST[reason]}. {said}"))
    if reason == "SubmissionFailed":
        detail = line(f"KubeRay could not hand the job to Ray. {said}")
        return Standing(state=JobState.QUEUED, detail=detail, place=ClusterState.FAILED)
    return Standing(state=JobState.FAILED, detail=said)


def _late(job: Object, reason: str) -> Fault:
    """KubeRay's own deadline came before ours, as when Airflow was away."""
    if reason == "DeadlineExceeded":
        limit = number(job, "spec", "activeDeadlineSeconds")
        cause = f"KubeRay ended the job after {limit} s (activeDeadlineSeconds). {_said(job)}"
        return Fault(code=TotalTimeout.code, cause=line(cause), lever="Raise total.")
    limit = number(job, "spec", "preRunningDeadlineSeconds")
    cause = f"KubeRay gave up: the job did not run within {limit} s (preRunningDeadlineSeconds). {_said(job)}"
    kind = StartTimeout if _was_ready(job) else NoSliceError
    return Fault(code=kind.code, cause=line(cause), lever="Raise slice_wait, free a slice, or ask for a smaller one.")


def _was_ready(job: Object) -> bool:
    conditions = parts(job, "status", "rayClusterStatus", "conditions")
    return any(text(each, "type") == "RayClusterProvisioned" and text(each, "status") == "True" for each in conditions)


def _refused(job: Object) -> Fault:
    return Fault(
        code=ManifestError.code,
        cause=line(f"KubeRay refuses the RayJob: {text(job, 'status', 'message') or 'it does not say why'}"),
        lever="Correct what it names; the object itself has to change.",
    )


def _said(job: Object) -> str:
    """``AppFailed: Job entrypoint command failed with exit code 1, ...``."""
    return line(": ".join(filter(None, (text(job, "status", "reason"), text(job, "status", "message")))), 600)
