"""Which earlier attempts' work this attempt goes on from, and which earlier run's."""

from __future__ import annotations

import logging
from dataclasses import replace

from airflow_raytpu.model.errors import PathError, RequestError
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.commits import damage, every_commit

GIVE = "Give the checkpoint that a training task returned."
"""What to do about a checkpoint that is not there."""

log = logging.getLogger(__name__)


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
        if _succeeded(f"{request.storage}/outbox/{earlier}"):
            break
        names.append(earlier)
    return tuple(names)


def _succeeded(attempt: str) -> bool:
    """Whether *attempt*, its files' common address, did. Where its result was cut off, Airflow's own mark tells.

    Where neither can be read it did: work that is done again is only dear, but the old taken for the new is wrong.
    """
    for what in ("result", "used"):
        try:
            data = files.read_json(f"{attempt}.{what}.json")
            if what == "result":
                return data is not None and Outcome.from_dict(data).succeeded
            return data is None or data["phase"] == "SUCCEEDED"
        except (RequestError, KeyError, TypeError, ValueError) as error:
            log.warning("%s.%s.json cannot be read: %s", attempt, what, error)
    return True


def warm_start(request: RayRequest) -> str:
    """URI of the checkpoint whose state a fresh run begins with, empty for none.

    A run that is named in the arguments, by its id or by the folder of its checkpoints, stands for the newest of them,
    if it has one.

    :raises PathError: nothing is where a checkpoint is named, and the run has none of its own to go on from.
    """
    stated: str = request.arguments.get("warm_start") or ""
    run: str = request.arguments.get("warm_start_run") or ""
    folder: str = request.arguments.get("warm_start_folder") or ""
    if not run and not folder:
        if stated and not _has_begun(request) and not files.children(stated):
            raise PathError(f"There is no checkpoint at {stated}.", GIVE)
        return stated
    root = request.storage.removesuffix(request.identity.storage_path())
    folder = folder or f"{root}{replace(request.identity, run_id=run).storage_path()}/checkpoints"
    found = next((commit for commit in every_commit(folder) if not damage(commit)), None)
    if found is None:
        log.warning("The run before left no checkpoint in %s: beginning with a fresh state.", folder)
    return found.uri if found else ""


def _has_begun(request: RayRequest) -> bool:
    names = lineage(request, request.arguments.get("resume", "auto"))
    return any(commit.request in names for commit in every_commit(f"{request.storage}/checkpoints"))
