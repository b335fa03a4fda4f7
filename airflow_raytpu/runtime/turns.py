"""Rollouts of one application take turns: two at once would each put its own version over the other's."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from airflow_raytpu.model.errors import RolloutError

_NAMESPACE = "airflow_raytpu"
_POLL_S = 0.5
_ANSWER_S = 5.0

log = logging.getLogger(__name__)


class _Turn:
    """An actor whose name is the turn: Ray gives a name once, and frees it when the driver that has it dies."""

    def __init__(self, request: str) -> None:
        self._request = request

    def holder(self) -> str:
        return self._request


@contextmanager
def turn(application: str, request: str, until: float, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the turn of *application* for the time of the block.

    :param request: remote name of the rollout, for those who wait for it.
    :param until: when to give up, in seconds since the epoch.
    :param tell: is told whom it waits for.
    :raises RolloutError: it was somebody else's for too long.
    """
    began, name = time.time(), f"rollout/{application}"
    while (held := _take(name, request)) is None:
        holder = _holder(name)
        if time.time() > until:
            raise RolloutError(
                f"Application {application} was still being rolled out by {holder} after {time.time() - began:.0f} s.",
                "Look at that rollout, or raise slice_wait, for which its turn is waited for.",
            )
        tell(f"{holder} is being rolled out, this version comes next")
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        ray.kill(held)


def _take(name: str, request: str) -> Any:
    """The actor; ``None`` where somebody has the turn."""
    actor = ray.remote(num_cpus=0)(_Turn)
    try:
        return actor.options(name=name, namespace=_NAMESPACE).remote(request)
    except ValueError:
        # Ray's word for a name that is taken (2.60).
        return None


def _holder(name: str) -> str:
    """Who has the turn, for people."""
    try:
        return str(ray.get(ray.get_actor(name, _NAMESPACE).holder.remote(), timeout=_ANSWER_S))
    except (ValueError, ray.exceptions.RayError) as error:
        log.info("Who has the turn does not answer: %s", error)
        return "another rollout"
