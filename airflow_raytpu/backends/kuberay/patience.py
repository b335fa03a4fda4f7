"""When a refusal is believed. Pure.

A role that is put on anew is gone for seconds, and so is a kind whose definition is replaced; what runs must not end of
that. What is refused for minutes will not come by waiting.
"""

from __future__ import annotations

from airflow_raytpu.model.errors import RayTpuError
from airflow_raytpu.model.observation import ClusterState, Fault, JobState, Observation
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.slices import span

BELIEVED_S = 300.0


class Patience:
    """Since when each request has been refused a look."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def renew(self, request: RayRequest) -> None:
        """It was looked at."""
        self._since.pop(request.name, None)

    def meaning(self, request: RayRequest, refused: RayTpuError, now: float) -> Observation:
        """What *refused* means for *request* at *now*: no answer at first, and a fault once it has stood."""
        stood = now - self._since.setdefault(request.name, now)
        if stood < BELIEVED_S:
            return Observation.unreachable(refused.cause)
        cause = f"For {span(stood)} nothing can be seen: {refused.cause}"
        return Observation(
            cluster=ClusterState.UNRECOGNISED,
            job=JobState.UNRECOGNISED if request.kind.is_job else None,
            fault=Fault(code=refused.code, cause=cause, lever=refused.lever),
        )
