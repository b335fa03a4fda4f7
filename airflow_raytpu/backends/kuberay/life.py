"""Signs of life on a cluster: how long it outlives Airflow's last look, and when that was. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from airflow_raytpu.backends.kuberay import naming

_BEATS = 4
"""Signs of life in one time to live."""


def ttl_s(item: Mapping[str, Any]) -> float:
    """Seconds that *item* outlives the last look; 0 where it does not say, and is none of ours."""
    return _number(item, naming.TTL)


def last_beat(item: Mapping[str, Any]) -> float:
    """When somebody last looked at *item*, in seconds since the epoch; 0 where it does not say."""
    return _number(item, naming.HEARTBEAT)


def longer(item: Mapping[str, Any], asked_s: float) -> dict[str, str]:
    """The annotation that lets *item* outlive the last look by *asked_s* seconds; empty where it does so already.

    It is never shortened: whoever asked for more still counts on it.
    """
    return {naming.TTL: f"{asked_s:.0f}"} if 0 < ttl_s(item) < round(asked_s) else {}


def is_due(item: Mapping[str, Any], now: float) -> bool:
    """Whether *item* wants another sign of life at *now* (seconds since the epoch), whoever gives it."""
    life = ttl_s(item)
    return life > 0 and now - last_beat(item) >= life / _BEATS


def is_over(item: Mapping[str, Any], now: float) -> bool:
    """Whether nobody has looked at *item* for as long as it may live."""
    life = ttl_s(item)
    return life > 0 and now - last_beat(item) > life


def beat(now: float) -> dict[str, Any]:
    """The patch that says that somebody looked."""
    return {"metadata": {"annotations": {naming.HEARTBEAT: f"{now:.0f}"}}}


def _number(item: Mapping[str, Any], name: str) -> float:
    try:
        found = float(naming.note_of(item, name))
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0
