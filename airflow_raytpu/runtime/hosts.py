"""The author's program once on each host of held slices, each in a process of its own."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any, Self

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from airflow_raytpu.model.errors import LostError, StartTimeout
from airflow_raytpu.runtime import mesh, neighbours, relay
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.faults import first_line, ours
from airflow_raytpu.runtime.launch import EVICTED, GRACE_S, Launch
from airflow_raytpu.runtime.outbox import speak
from airflow_raytpu.runtime.slices import LOSS_SHOWS_S, ReservedSlice

_ECHO_S = 3.0
"""How long the other hosts may take to say what they know, once one has failed."""

_STOP_S = 3.0


class Runner:
    """A Ray actor, one on each host. It holds the chips; the process that it starts uses them."""

    def __init__(self, request: str, rank: int) -> None:
        speak()
        mesh.prepare()
        self._request, self._rank = request, rank

    def address(self) -> tuple[str, int]:
        """Where this host can be reached, and a port that is free on it."""
        with socket.socket() as free:
            free.bind(("", 0))
            return ray.util.get_node_ip_address(), free.getsockname()[1]

    def run(self, task: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
        """What the program returned here. See :meth:`Launch.wait`."""
        # A program may connect to Ray itself; without this it would look for a cluster of its own.
        address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
        told: dict[str, Any] = {}

        here = {**task, "where": f" on {mesh.host()}"}
        with Launch(here, {**address, **environment}, session_folder()) as process:

            def turn() -> float | None:
                nonlocal told
                news = {**process.news(), "answered": process.answered}
                if news != told:
                    told = news
                    relay.publish(self._request, f"host/{self._rank}", news)
                stop = relay.collect(self._request, "stop")
                return None if stop is None else stop["grace_s"]

            return process.wait(turn)


class Hosts:
    """A :class:`Runner` on each host, ended with its context."""

    def __init__(self, request: str, held: ReservedSlice) -> None:
        self._request, self._held = request, held
        self._actors: list[Any] = []
        self._running: dict[Any, int] = {}
        self._values: dict[int, Any] = {}

    def __enter__(self) -> Self:
        relay.clear(self._request)
        make = ray.remote(Runner)
        for rank, host in enumerate(self._held.hosts):
            place = PlacementGroupSchedulingStrategy(self._held.group, placement_group_bundle_index=host.bundle)
            self._actors.append(
                make.options(
                    num_cpus=1, resources={"TPU": self._held.plan.chips_per_worker}, scheduling_strategy=place
                ).remote(self._request, rank)
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._running:
            # Whoever is told to stop may save what it has. After a failure the others only hang in a collective.
            grace_s = GRACE_S if kind is KeyboardInterrupt else 0.0
            self.stop(grace_s)
            ray.wait(list(self._running), num_returns=len(self._running), timeout=grace_s + _STOP_S)
        for actor in self._actors:
            ray.kill(actor)
        relay.clear(self._request)

    def start(self, task: Mapping[str, Any], environment: Mapping[str, str], start_s: float) -> None:
        """Start the program on all hosts.

        :raises LostError: a host is gone.
        :raises StartTimeout: a host has not answered, and is named.
        """
        addresses = self._addresses(start_s)
        ip, port = addresses[0]
        known = neighbours.environments(self._held.plan, [address for address, _ in addresses])
        for rank, actor in enumerate(self._actors):
            here = {**task, "rank": rank, "coordinator": f"{ip}:{port}"}
            self._running[actor.run.remote(here, {**known[rank], **environment})] = rank

    def wait(self, within_s: float) -> bool:
        """Look for hosts that have ended; whether all have.

        :raises AuthorError: the program failed on one, the first to blame.
        :raises LostError: a host was lost.
        """
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=within_s)
        errors = self._take(ready)
        if errors:
            self._hear_out(errors)
            raise blame(errors)
        return not self._running

    def stop(self, grace_s: float = 0.0) -> None:
        """Have every process end that still runs, within *grace_s* seconds."""
        relay.publish(self._request, "stop", {"grace_s": grace_s})

    @property
    def values(self) -> list[Any]:
        """What the program returned, by rank."""
        return [self._values[rank] for rank in range(len(self._actors))]

    def news(self) -> list[dict[str, Any]]:
        """The newest word of each host, by rank."""
        return [relay.collect(self._request, f"host/{rank}") or {} for rank in range(len(self._actors))]

    def _take(self, references: list[Any]) -> dict[int, Exception]:
        errors = {}
        for reference in references:
            rank = self._running.pop(reference)
            try:
                self._values[rank] = ray.get(reference)
            except ray.exceptions.RayError as error:
                errors[rank] = self._meaning(error, rank)
        return errors

    def _hear_out(self, errors: dict[int, Exception]) -> None:
        """The first error that arrives need not be the first that happened."""
        began = time.time()
        while self._running:
            certain = any(not getattr(error, "collateral", False) for error in errors.values())
            left = began + (_ECHO_S if certain else LOSS_SHOWS_S) - time.time()
            if left <= 0:
                return
            ready, _ = ray.wait(list(self._running), num_returns=1, timeout=min(left, 0.5))
            errors.update(self._take(ready))

    def _meaning(self, error: ray.exceptions.RayError, rank: int) -> Exception:
        inner = ours(error)
        if inner is not None:
            return inner
        if isinstance(error, ray.exceptions.RayTaskError):
            # A fault of the runtime's own, and none of these.
            failed: Exception = error
            return failed
        return LostError(f"{self._name(rank)} was lost: {first_line(error)}", EVICTED)

    def _name(self, rank: int) -> str:
        host = self._held.hosts[rank]
        return f"host {host.worker_id} of slice {host.slice_name}"

    def _addresses(self, start_s: float) -> list[tuple[str, int]]:
        asked = [actor.address.remote() for actor in self._actors]
        _, late = ray.wait(asked, num_returns=len(asked), timeout=start_s)
        if late:
            missing = ", ".join(self._name(asked.index(reference)) for reference in late)
            raise StartTimeout(f"No process within {start_s:.0f} s (start): {missing} did not come.", "Raise start.")
        answers = []
        for rank, reference in enumerate(asked):
            try:
                answers.append(ray.get(reference))
            except ray.exceptions.RayError as error:
                raise self._meaning(error, rank) from error
        return answers


def session_folder() -> str:
    """Ray's own folder on this host, which goes with the cluster."""
    from ray._private.worker import _global_node

    return _global_node.get_session_dir_path()  # type: ignore[no-any-return]


def blame(errors: Mapping[int, Exception]) -> Exception:
    """Whose fault it is: the author's own error first, then a lost host; an echo only where there is nothing else."""
    raised = [error for error in errors.values() if isinstance(error, AuthorError)]
    own = [error for error in raised if not error.collateral]
    if own:
        return min(own, key=lambda error: error.at)
    others = [error for error in errors.values() if not isinstance(error, AuthorError)]
    if others:
        return others[0]
    return min(raised, key=lambda error: error.at)
