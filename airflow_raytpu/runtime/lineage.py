"""Which earlier attempts' work this attempt goes on from."""

from __future__ import annotations

from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.runtime import files


def lineage(request: RayRequest, resume: str = "auto") -> tuple[str, ...]:
    """Names of the attempts whose checkpoints and parts count: this one, and those before it back to the last success.

    An attempt that follows a success was asked for on purpose, a cleared task, and so does the work again.

    :param resume: ``"never"`` leaves this attempt alone.
    """
    names = [request.name]
    if resume == "never":
        return tuple(names)
    for attempt in range(request.identity.attempt - 1, 0, -1):
        earlier = request.identity.with_attempt(attempt).remote_name()
        data = files.read_json(f"{request.storage}/outbox/{earlier}.result.json")
        if data is not None and Outcome.from_dict(data).succeeded:
            break
        names.append(earlier)
    return tuple(names)
