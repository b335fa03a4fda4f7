"""Around the author's train loop, in each worker: prove the mesh, open the checkpoints, call, close."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_raytpu.model.policies import CheckpointPolicy, Profile
from airflow_raytpu.runtime import author, checkpoints, data, mesh, relay
from airflow_raytpu.runtime.agreement import Relayed, draining
from airflow_raytpu.runtime.commits import Commit
from airflow_raytpu.runtime.feed import Feed
from airflow_raytpu.runtime.outbox import finite, speak
from airflow_raytpu.runtime.profiling import Profiler
from airflow_raytpu.runtime.resizing import wish
from airflow_raytpu.runtime.sources import Source


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
    :param argv: command-line words for a loop that takes those instead of a config.
    :param may_grow: another try may have more slices.
    :param profile: what to trace, on the first host; :param profile_uri: and where that goes.
    :param datasets: the files of each dataset.
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
    argv: Sequence[str] | None = None
    may_grow: bool = False
    profile: Profile | None = None
    profile_uri: str = ""
    datasets: Mapping[str, Source] = field(default_factory=dict)


def run_loop(settings: Settings, config: dict[str, Any]) -> dict[str, Any]:
    """One worker's whole life. Called by Ray Train on every worker.

    :returns: how it ended, for the driver (Ray hands over rank 0's).
    :raises BrokenSliceError: JAX does not see the whole slice.
    :raises LostError: its hosts do not reach one another.
    :raises AuthorError: the author's code raised.
    """
    from ray import train

    speak()
    rank = train.get_context().get_world_rank()
    mesh.check(settings.workers, settings.devices)
    board = Relayed(settings.request, settings.token) if settings.workers > 1 else None
    if board is not None:
        mesh.prove(board, rank, settings.workers)
    stood = settings.restore.data if settings.restore else {}
    feed = Feed(settings.datasets, rank, settings.workers, stood)
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
        board=board,
        noticed=lambda: draining(settings.nodes),
        wished=(lambda: wish(settings.request)) if settings.may_grow else str,
        profiler=Profiler(settings.profile, settings.profile_uri) if settings.profile and rank == 0 else None,
        position=feed.position,
    )
    with checkpoints.opened(session), data.opened(feed):
        loop = author.load(settings.loop)
        with author.quoted(loop.__name__, lambda: _where(rank, session.step)):
            call_loop(loop, config if settings.argv is None else _command_line(settings.loop, settings.argv))
        session.finish()
    ended: dict[str, Any] = {"processes": settings.workers, "devices": settings.devices, "datasets": feed.used}
    if session.step:
        newest = session.commit
        best = session.best() if rank == 0 else None
        ended |= {"best_step": best.step if best else None, "best_checkpoint": best.uri if best else None}
        # A run that had nothing left to do ends with what its checkpoint says.
        metrics = finite(session.metrics) or dict(newest.metrics if newest else {})
        ended |= {"step": session.step, "metrics": metrics}
        ended["checkpoint"] = newest.uri if newest else None
    return ended


def _command_line(name: str, argv: Sequence[str]) -> list[str]:
    """What a program finds as its arguments, wherever it looks."""
    sys.argv = [name, *argv]
    return list(sys.argv)


def call_loop(loop: Callable[..., Any], config: Any) -> None:
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
