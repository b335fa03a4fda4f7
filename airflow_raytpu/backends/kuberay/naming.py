"""By what our objects are found, and what they say of themselves: labels, annotations, names. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import RayRequest

PREFIX = "airflow-raytpu/"
DEPLOYMENT = f"{PREFIX}deployment"
DAG_ID = f"{PREFIX}dag-id"
TASK_ID = f"{PREFIX}task-id"
RUN_ID = f"{PREFIX}run-id"
REQUEST = f"{PREFIX}request"
LABELS = (DEPLOYMENT, DAG_ID, TASK_ID, RUN_ID, REQUEST)
"""On every object of ours and on its pods."""

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "airflow-raytpu"

OWNER = f"{PREFIX}owner"
"""Exact, as :meth:`Identity.owner` writes it; labels hold only what fits."""
TTL = f"{PREFIX}ttl-seconds"
HEARTBEAT = f"{PREFIX}heartbeat"
"""When Airflow last looked, in seconds since the epoch."""
SLICE = f"{PREFIX}slice"
CREATOR = f"{PREFIX}creator"
"""On what several tasks share: the storage of the one that made it, and that alone may give it up."""
VERSION, PROVEN_AT = f"{PREFIX}version", f"{PREFIX}proven-at"
"""On a RayService: the version that its configuration is, once that has proven good, and when it had."""

RAY_CONTAINER = "ray"
"""The container that Ray runs in, of head and workers alike; KubeRay takes the first one."""

_LABEL_LIMIT = 63
_HASH = 8


def label_value(text: str) -> str:
    """*text* as a label's value, the same each time; one that had to be changed carries a hash of the whole."""
    if not text:
        return ""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", text)
    if plain == text and len(text) <= _LABEL_LIMIT and plain[0].isalnum() and plain[-1].isalnum():
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
    kept = plain[: _LABEL_LIMIT - _HASH - 1].strip("-_.")
    return f"{kept}-{digest}" if kept else digest


def owner_labels(identity: Identity) -> dict[str, str]:
    """The labels by which whoever knows Airflow's ids finds the objects of any attempt."""
    return {
        DEPLOYMENT: label_value(identity.deployment),
        DAG_ID: label_value(identity.dag_id),
        TASK_ID: label_value(identity.task_id),
        RUN_ID: label_value(identity.run_id),
    }


def labels(request: RayRequest) -> dict[str, str]:
    """What every object and pod of *request* is labelled with."""
    return {**owner_labels(request.identity), REQUEST: request.name}


def own_annotations(request: RayRequest, now: float) -> dict[str, str]:
    """What a top-level object says of itself.

    :param now: seconds since the epoch, the first sign of life.
    """
    found = {
        OWNER: request.identity.owner(),
        TTL: f"{request.ttl_s:.0f}",
        HEARTBEAT: f"{now:.0f}",
        SLICE: request.slice,
    }
    return found | {CREATOR: request.storage} if request.shared else found


def owner_of(item: Any) -> str:
    """The owner that an object of the API names; empty where it is none of ours."""
    return note_of(item, OWNER)


def note_of(item: Any, annotation: str) -> str:
    """What an object of the API says there; empty where it says nothing."""
    return str(((item.get("metadata") or {}).get("annotations") or {}).get(annotation, ""))
