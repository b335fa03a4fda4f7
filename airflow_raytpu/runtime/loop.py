"""Around the author's train loop, in each worker: prove the mesh, open the checkpoints, call, close."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_raytpu.model.policies import CheckpointPolicy
from airflow_raytpu.runtime import author, checkpoints, mesh, relay
from airflow_raytpu.runtime.agreement import Relayed, draining
from airflow_raytpu.runtime.commits import Commit
from airflow_raytpu.runtime.outbox import finite, speak


@dataclass(frozen=True, slots=True)
class Settings:
    """What the driver tells each worker. Survives pickling.

    :param loop: the author's loop, ``module:qualname``.
    :param workers: JAX processes there must be.
    :param devices: JAX devices there must be over all of them.
    :param policy: :meth:`CheckpointPolicy.to_dict`.
    :param restore: the checkpoint to go on from.
    :param warm_start: URI of the checkpoint whose state a fresh run begins with.
    :param nodes: Ray nodes of the gang.
    :param token: of this try alone.
    :param total: steps in all, 0 where unknown.
    """

    request: str
    loop: str
    workers: int
    devices: int
    root: str
    policy: Mapping[str, Any]
    lineage: tuple[str, ...]
    restore: Commit | None
    total: int
    warm_start: str = ""
    on_nan: str = "stop"
    nodes: frozenset[str] = frozenset()
    token: str = ""


def run_loop(settings: Settings, config: dict[str, Any]) -> dict[str, Any]:
    """One worker's whole life. Called by Ray Train on every worker.

    :returns: how it ended, for the driver (Ray hands over rank 0's).
    :raises BrokenSliceError: JAX does not see the whole slice.
    :raises AuthorError: the author's code raised.
    """
    from ray import train

    speak()
    rank = train.get_context().get_world_rank()
    mesh.check(settings.workers, settings.devices)
    session = checkpoints.Session(
        root=settings.root,
        request=settings.request,
        policy=CheckpointPolicy.from_dict(settings.policy),
        lineage=settings.lineage,
        restore=settings.restore,
        total=settings.total,
        rank=rank,
        tell=lambda news: relay.publish(settings.request, "loop", news),
        warm_start=settings.warm_start,
        on_nan=settings.on_nan,
        board=Relayed(settings.request, settings.token) if settings.workers > 1 else None,
        noticed=lambda: draining(settings.nodes),
    )
    with checkpoints.opened(session):
        loop = author.load(settings.loop)
        with author.quoted(loop.__name__, lambda: _where(rank, session.step)):
            call_loop(loop, config)
        session.finish()
    ended: dict[str, Any] = {"processes": settings.workers, "devices": settings.devices}
    if session.step:
        newest = session.commit
        best = session.best() if rank == 0 else None
        ended |= {"best_step": best.step if best else None, "best_checkpoint": best.uri if best else None}
        # A run that had nothing left to do ends with what its checkpoint says.
        metrics = finite(session.metrics) or dict(newest.metrics if newest else {})
        ended |= {"step": session.step, "metrics": metrics}
        ended["checkpoint"] = newest.uri if newest else None
    return ended


def call_loop(loop: Callable[..., Any], config: dict[str, Any]) -> None:
    """Call *loop* as Ray Train does: with the config, or with nothing where it takes nothing."""
    required = [
        parameter
        for parameter in inspect.signature(loop).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    loop(config) if required else loop()


def _where(rank: int, step: int) -> str:
    # A loop that does without our checkpoints never says its step.
    at = f" at step {step:,}" if step else ""
    return f" on rank {rank} ({mesh.host()}){at}"
