"""Simulated clusters that nobody looks after any more: which they are, and their end.

A supervisor ends its cluster by itself when nobody looks. Here is what is left where it could not.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.folder import Cluster
from airflow_raytpu.model.errors import ClusterError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.orphans import Orphan, is_silent

_CLUSTER, _FOLDER = "cluster", "folder"
_HALF = (".new-", ".trash-")
"""How folders are called that are on their way in or out; none of their processes lives."""


def find(root: Path, deployment: str, older_than_s: float) -> list[Orphan]:
    """See :meth:`~airflow_raytpu.backends.base.Backend.orphans`."""
    now = time.time()
    found = (_judged(each, deployment, now, older_than_s) for folder in sorted(root.iterdir()) if (each := _at(folder)))
    return [each for each in found if each is not None]


def end(root: Path, orphan: Orphan) -> bool:
    """See :meth:`~airflow_raytpu.backends.base.Backend.reap`."""
    folder = root / orphan.name
    found = _at(folder)
    if found is None or found.record.uid != orphan.uid:
        return True
    if _owner(found) != orphan.owner or _last_sign(found) > orphan.last_sign:
        return False
    if orphan.kind == _CLUSTER:
        cluster.remove(found)
    else:
        cluster.discard(folder)
    left = _at(folder)
    if left is not None and left.record.uid == orphan.uid:
        raise ClusterError(f"{folder} does not go.", "See its owner and mode.")
    return True


def _judged(found: Cluster, deployment: str, now: float, older_than_s: float) -> Orphan | None:
    owner, seen_at = _owner(found), _last_sign(found)
    if owner is None or owner.deployment != deployment:
        return None
    half = found.folder.name.startswith(_HALF)
    over = "left half-way" if half else "its supervisor died" if found.lost else ""
    if not is_silent(seen_at, now, 0.0 if over else found.record.ttl_s, older_than_s):
        return None
    return Orphan(
        kind=_FOLDER if half else _CLUSTER,
        name=found.folder.name,
        uid=found.record.uid,
        owner=owner,
        last_sign=seen_at,
        why=over or found.record.phase.value,
    )


def _at(folder: Path) -> Cluster | None:
    """What is in *folder*; ``None`` where that is no cluster of this version, whose owner cannot be known."""
    with contextlib.suppress(ClusterError):
        return cluster.attach(folder.parent, folder.name)
    return None


def _owner(found: Cluster) -> Identity | None:
    """Who asked for it; ``None`` where the two places that say so differ."""
    try:
        owner = Identity.from_dict(dict(found.record.identity))
    except (TypeError, ValueError):
        return None
    return owner if owner.owner() == found.record.owner else None


def _last_sign(found: Cluster) -> float:
    """In seconds since the epoch."""
    with contextlib.suppress(FileNotFoundError):  # a folder on its way out may have lost it
        return (found.folder / "heartbeat").stat().st_mtime
    return found.record.created_at
