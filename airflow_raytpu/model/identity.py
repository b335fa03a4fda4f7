"""Who asked: one logical attempt of one task, and the names that follow from it alone."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

JOB_NAME_LIMIT = 35
"""Longest RayJob or RayService name; KubeRay and the TPU webhook add to it (KubeRay 1.7, webhook 1.3)."""

CLUSTER_NAME_LIMIT = 41
"""Longest RayCluster name: from 42 on, the TPU webhook's headless host names do not resolve (webhook 1.3)."""

_HASH_LENGTH = 8
_SEGMENT_LIMIT = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One logical attempt. Two equal identities are the same remote object, whoever asks and when.

    :param deployment: the Airflow deployment, so that two of them can share a namespace.
    :param map_index: index of a mapped task, -1 where it is not mapped (as in Airflow).
    :param attempt: counts from 1; rises only when the attempt before is finished and used up.
    """

    deployment: str
    dag_id: str
    task_id: str
    run_id: str
    map_index: int = -1
    attempt: int = 1

    def remote_name(self, limit: int = JOB_NAME_LIMIT) -> str:
        """A DNS-1035 name of at most *limit* characters: a readable slug, then a hash of every field."""
        slug = _dns_slug(f"{self.dag_id}-{self.task_id}")[: limit - _HASH_LENGTH - 1].strip("-")
        return f"{slug or 'task'}-{self._hash()}"

    def storage_path(self) -> str:
        """``dag/task/run[/map]`` under a storage root: one for all attempts, so that each sees the last one's work."""
        parts = [self.dag_id, self.task_id, self.run_id]
        if self.map_index >= 0:
            parts.append(str(self.map_index))
        return "/".join(_segment(part) for part in parts)

    def with_attempt(self, attempt: int) -> Identity:
        return replace(self, attempt=attempt)

    def owner(self) -> str:
        """What an owner annotation says, in full: JSON-free, exact, for people and for equality."""
        return "|".join(str(value) for value in asdict(self).values())

    @classmethod
    def from_owner(cls, text: str) -> Identity | None:
        """What :meth:`owner` wrote; ``None`` for any other text."""
        parts = text.split("|")
        if len(parts) < 6:
            return None
        deployment, dag_id, task_id, *run_id, map_index, attempt = parts
        try:
            return cls(
                deployment=deployment,
                dag_id=dag_id,
                task_id=task_id,
                run_id="|".join(run_id),
                map_index=int(map_index),
                attempt=int(attempt),
            )
        except ValueError:
            return None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Identity:
        return cls(**data)

    def _hash(self) -> str:
        # The lengths keep ("a", "bc") and ("ab", "c") apart.
        values = (str(getattr(self, field.name)) for field in fields(self))
        text = "".join(f"{len(value)}:{value};" for value in values)
        digest = hashlib.sha256(text.encode()).digest()[: _HASH_LENGTH * 5 // 8]
        return base64.b32encode(digest).decode().lower()


def _dns_slug(text: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return slug if slug[:1].isalpha() else f"t-{slug}".strip("-")


def _segment(text: str) -> str:
    """A path segment that is readable where it can be and never collides: changed text carries its hash."""
    safe = re.sub(r"[^A-Za-z0-9_.=+@-]", "_", text)[:_SEGMENT_LIMIT]
    if safe == text and safe.strip("."):
        return safe
    return f"{safe.strip('.')}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]}"
