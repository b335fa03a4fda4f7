"""The process that owns one simulated cluster: ``python -m airflow_raytpu.backends.simulated.supervisor FOLDER``.

It starts the Ray nodes, proves the slices, then watches until it is told to stop, nobody has given a sign of life for
the TTL, or the head is lost. Whatever ends it ends every Ray process: by its own hand, or by the kernel's. Where its
record says so, a slice that lost a host is taken down whole and made anew, and slices come later than the cluster.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import queue
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from airflow_raytpu.backends.simulated import cluster, environment, launching, layout, proof, seen, state, witness
from airflow_raytpu.backends.simulated.claims import Machine, folder_claim
from airflow_raytpu.backends.simulated.heartbeat import Heartbeat
from airflow_raytpu.backends.simulated.launching import START_WITHIN_S, Due, Fleet, Key
from airflow_raytpu.backends.simulated.nodes import NotUpError
from airflow_raytpu.backends.simulated.processes import (
    NODES,
    ProcessId,
    adopt_orphans,
    end,
    family,
    members,
    reap,
)
from airflow_raytpu.backends.simulated.state import HEAL_S, Phase, Record
from airflow_raytpu.model.errors import ClusterError, RayTpuError
from airflow_raytpu.placement.topology import TpuSlice

_log = logging.getLogger("raytpu.supervisor")

_PROVING_TICK_S, _WATCH_TICK_S = 0.2, 0.5
_END_WITHIN_S = 20.0


class _Stop(Exception):
    """The cluster is no longer wanted."""


class Supervisor:
    """One cluster from its first process to its last."""

    def __init__(self, folder: Path, record: Record) -> None:
        self._folder = folder
        self._record = record
        self._due = seen.slices_due(record)
        self._shapes = list(self._due.values())
        self._numbers = itertools.count(len(self._shapes))
        self._machine = Machine()
        self._heartbeat = Heartbeat(folder)
        # Not an Event: one that a signal sets in the middle of a wait for it waits for ever.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._told_to_make = False
        self._fleet = Fleet(self._tick, self._came_up)
        self._ports: dict[Key, int] = {}
        self._awaited: dict[int, float] = {}
        """When to make which slice, on the clock of :func:`time.monotonic`."""
        self._tried: set[int] = set()
        self._making: int | None = None

    def run(self) -> int:
        """Bring the cluster up and stay with it to its end; the exit status."""
        self._listen()
        adopt_orphans()
        try:
            self._write(supervisor=ProcessId.own(), detail="importing Ray")
            place = self._place()
            self._start(place)
            self._stay(place)
        except _Stop as reason:
            _log.info("stopping: %s", reason)
            self._last_words(Phase.STOPPING, str(reason))
            self._end_all()
            cluster.discard(self._folder)
            return 0
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing may stay behind and people must read why
            _log.exception("failed")
            self._end_all()
            self._last_words(Phase.FAILED, f"{_words(error)} See {self._folder / 'supervisor.log'}.")
            return 1

    def _listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda number, _: self._signals.put(number))

    def _start(self, place: environment.ClusterPlace) -> None:
        chosen = environment.cluster_environment(os.environ, place, self._shapes[0].chips_per_host)
        os.environ.clear()
        os.environ.update(chosen)
        witness.import_ray()
        dashboard_port = self._machine.port()
        self._write(
            address=place.address,
            dashboard=f"http://127.0.0.1:{dashboard_port}",
            endpoint=place.endpoint,
            slices=layout.slices(self._due, place, self._record.arrivals),
            detail="starting the Ray nodes",
        )
        first = [index for index, part in enumerate(self._record.slices) if not part.awaited]
        self._tried.update(first)
        (self._folder / NODES).mkdir(exist_ok=True)
        self._fleet.bring_up([(None, layout.head(place, dashboard_port)), *self._host_plans(place, first)])
        self._prove(place, first)
        late_s = self._record.arrivals.late_s
        due_at = math.inf if late_s is None else time.monotonic() + late_s
        self._awaited = {index: due_at for index in range(len(self._shapes)) if index not in first}
        self._write(phase=Phase.READY, detail=self._faults())

    def _stay(self, place: environment.ClusterPlace) -> NoReturn:
        """Watch, and make what is awaited once its time has come."""
        while True:
            self._tick(_WATCH_TICK_S)
            if self._told_to_make:
                self._told_to_make = False
                self._awaited = dict.fromkeys(self._awaited, time.monotonic())
            for index in self._now_due():
                self._make(place, index)

    def _place(self) -> environment.ClusterPlace:
        hosts = sum(shape.hosts for shape in self._shapes)
        if hosts > environment.HOSTS_LIMIT:
            raise ClusterError(
                f"{', '.join((self._record.slice, *self._record.also))} has {hosts} hosts; "
                f"{environment.HOSTS_LIMIT} can be simulated.",
                "Use a smaller slice.",
            )
        return environment.ClusterPlace(
            folder=self._folder,
            uid=self._record.uid,
            block=self._machine.block(),
            port=self._machine.port(),
            endpoint=f"http://127.0.0.1:{self._machine.port()}",
            python=sys.executable,
        )

    def _host_plans(self, place: environment.ClusterPlace, indices: Iterable[int]) -> Iterator[Due]:
        """The hosts of these slices."""
        for index in indices:
            part = self._record.slices[index]
            for worker in range(len(part.hosts)):
                key = index, worker
                if key not in self._ports:
                    self._ports[key] = self._machine.port()
                yield key, layout.host(place, part, index, worker, self._ports[key])

    def _came_up(self, key: Key | None, launcher: ProcessId, raylet: int, progress: str) -> None:
        if key is not None:
            self._record = self._record.with_host(*key, launcher=launcher, raylet=raylet)
        self._write(detail=progress if self._record.phase is Phase.STARTING else self._faults())

    def _prove(self, place: environment.ClusterPlace, indices: Iterable[int]) -> None:
        parts = [self._record.slices[index] for index in indices]
        wanted = [proof.SliceShould.of(part.name, TpuSlice.parse(part.shape)) for part in parts]
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            found = proof.faults(witness.ray_nodes(place.address), wanted)
            missing = found or witness.api_fault(self._record.dashboard, self._folder / "token")
            if not missing:
                return
            if time.monotonic() > deadline:
                raise NotUpError(f"The slices are not whole after {START_WITHIN_S:.0f} s: {'; '.join(missing)}.")
            self._tick(_PROVING_TICK_S)

    def _now_due(self) -> list[int]:
        """The slices to make now: their time has come, and nothing is left of what they were."""
        leaving, now = self._fleet.slices() & set(self._awaited), time.monotonic()
        for index in leaving:
            # Again, for a launcher that was forked a moment before the first time was deaf; one may stay so.
            deaf = now > self._awaited[index] + _END_WITHIN_S
            self._fleet.end_slice(index, signal.SIGKILL if deaf else signal.SIGTERM)
        return [index for index, due_at in self._awaited.items() if due_at <= now and index not in leaving]

    def _make(self, place: environment.ClusterPlace, index: int) -> None:
        """Bring up a slice that is late or was lost; where that fails it will be tried again."""
        del self._awaited[index]
        part = self._record.slices[index]
        # A name is used once: Ray may still take hosts of an earlier try for living ones.
        used = index in self._tried
        name = f"{cluster.short_name(self._record.name)}-{next(self._numbers)}" if used else part.name
        self._tried.add(index)
        hosts = tuple(replace(host, launcher=None, raylet=0) for host in part.hosts)
        self._record = self._record.with_slice(index, name=name, hosts=hosts)
        self._write()
        self._making = index
        try:
            plans = list(self._host_plans(place, [index]))
            for _, plan in plans:
                launching.clear(plan.temp)
            self._fleet.bring_up(plans)
            self._prove(place, [index])
        except NotUpError as error:
            _log.warning("slice %s: %s", name, error.cause)
            self._take_down(index, f"did not come up and is tried again: {error.cause}")
        else:
            hosts = tuple(replace(host, alive=True) for host in self._record.slices[index].hosts)
            self._record = self._record.with_slice(index, hosts=hosts, awaited="")
            self._write(detail=self._faults())
        finally:
            self._making = None

    def _take_down(self, index: int, why: str) -> None:
        """End all hosts of a slice, as GKE does when one is lost, and make the slice anew after a while."""
        self._fleet.end_slice(index)
        hosts = tuple(replace(host, alive=False) for host in self._record.slices[index].hosts)
        self._record = self._record.with_slice(index, hosts=hosts, awaited=why)
        heal_s = self._record.arrivals.heal_s
        self._awaited[index] = time.monotonic() + (HEAL_S if heal_s is None else heal_s)
        self._write(detail=self._faults())

    def _tick(self, wait_s: float) -> None:
        """Wait a little, then look who died and whether to go on."""
        self._wait(wait_s)
        silent_s = self._heartbeat.silence()
        if silent_s is None:
            raise _Stop("its folder is gone")
        if silent_s > (ttl_s := state.raised_ttl(self._folder, self._record.ttl_s)):
            raise _Stop(f"no sign of life from Airflow for {silent_s:.0f} s (ttl {ttl_s:.0f} s)")
        lost = self._fleet.without(reap())
        # What is just being made comes last, for its loss ends this look.
        for index, worker in sorted(lost, key=lambda key: key[0] == self._making):
            self._lose(index, worker)

    def _wait(self, wait_s: float) -> None:
        """Let time pass, or less of it where a signal comes."""
        try:
            number = self._signals.get(timeout=wait_s)
        except queue.Empty:
            return
        if number != signal.SIGUSR1:
            raise _Stop("told to stop")
        self._told_to_make = True

    def _lose(self, index: int, worker: int) -> None:
        if self._record.phase is Phase.STARTING or index == self._making:
            raise NotUpError(f"Host {worker} of slice {self._record.slices[index].name} died while starting.")
        if index in self._awaited:
            return  # it is just being taken down
        self._record = self._record.with_host(index, worker, alive=False)
        if self._record.arrivals.heal_s is not None:
            self._take_down(index, f"{self._record.slices[index].loss} and is made anew")
        self._write(detail=self._faults())

    def _faults(self) -> str:
        return "; ".join(part.fault for part in self._record.slices if not part.whole)

    def _end_all(self) -> None:
        own = os.getpid()

        def others() -> set[ProcessId]:
            marked = (process for process in members(self._record.uid, self._folder) if process.pid != own)
            return {*family(), *marked}

        left = end(others, _END_WITHIN_S)
        if left:
            _log.error("could not end %s", left)

    def _last_words(self, phase: Phase, detail: str) -> None:
        try:
            self._write(phase=phase, detail=detail)
        except ClusterError:
            # Without its folder the cluster is absent, which says the same.
            _log.exception("its state cannot be written")

    def _write(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        state.write(self._folder, self._record)


def _words(error: Exception) -> str:
    if isinstance(error, RayTpuError):
        return f"{error.cause} {error.lever}".strip()
    return f"{type(error).__name__}: {error}."


def main(arguments: list[str]) -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    folder = Path(arguments[0])
    held = folder_claim(folder, within_s=2.0)
    if held is None:
        return 0  # another supervisor has this cluster
    record = state.read(folder)
    if record is None or record.phase is not Phase.STARTING:
        return 0
    return Supervisor(folder, record).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
