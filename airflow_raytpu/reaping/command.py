"""The command, from its arguments to its exit status."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from airflow_raytpu.backends import reaping
from airflow_raytpu.backends.base import Backend
from airflow_raytpu.model.orphans import Fate, Reaped

RESISTS = 1
"""Exit status where something does not go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user asked.

    :param older_than_s: seconds for which nobody has looked at what may go.
    :param output: ``text``, ``json`` or ``yaml``.
    """

    conn_id: str
    older_than_s: float
    dry_run: bool = False
    output: str = "text"


def run(question: Question) -> int:
    """Print what became of each orphan; the exit status.

    :raises RayTpuError: there is no such connection, or its place cannot be asked what there is.
    """
    from airflow_raytpu.hooks.raytpu import RayTpuHook, read_airflows_own_connections, setting

    read_airflows_own_connections()
    backend = RayTpuHook(question.conn_id).place().open()
    found = asyncio.run(_reap(backend, setting("deployment"), question))
    _show(found, question, setting("deployment"))
    return RESISTS if any(each.fate is Fate.RESISTS for each in found) else 0


async def _reap(backend: Backend, deployment: str, question: Question) -> list[Reaped]:
    try:
        return await reaping.reap(backend, deployment, question.older_than_s, dry_run=question.dry_run)
    finally:
        await backend.close()


def _show(found: Sequence[Reaped], question: Question, deployment: str) -> None:
    now = time.time()
    rows = [each.to_dict(now) for each in found]
    if question.output == "json":
        print(json.dumps(rows, indent=2))
    elif question.output == "yaml":
        print(yaml.safe_dump(rows, sort_keys=False), end="")
    elif found:
        print("\n".join(each.in_words(now) for each in found))
    else:
        print(f"Nothing of deployment {deployment} is left behind where {question.conn_id} leads.")
