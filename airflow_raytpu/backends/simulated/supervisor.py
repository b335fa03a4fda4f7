"""The process that owns one simulated cluster: ``python -m airflow_raytpu.backends.simulated.supervisor FOLDER``.

It starts the Ray nodes, proves the slices, then watches until it is told to stop, nobody has given a sign of life for
the TTL, or the head is lost. Whatever ends it ends every Ray process: by its own hand, or by the kernel's. Where its
record says so, a slice that lost a host is taken down whole and made anew, and slices come later than the cluster.
"""

from __future__ import annotations

import collections
import itertools
import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from airflow_raytpu.backends.simulated import cluster, environment, layout, nodes, proof, seen, state, witness
from airflow_raytpu.backends.simulated.claims import Machine, folder_claim
from airflow_raytpu.backends.simulated.heartbeat import Heartbeat
from airflow_raytpu.backends.simulated.nodes import NotUpError
from airflow_raytpu.backends.simulated.processes import (
    NODES,
    ProcessId,
    adopt_orphans,
    end,
    family,
    members,
    reap,
    writers,
)
from airflow_raytpu.backends.simulated.state import HEAL_S, Phase, Record
from airflow_raytpu.model.errors import ClusterError, RayTpuError
from airflow_raytpu.placement.topology import TpuSlice

_log = logging.getLogger("raytpu.supervisor")

START_WITHIN_S = 180.0
_STARTING_TICK_S, _PROVING_TICK_S, _WATCH_TICK_S = 0.05, 0.2, 0.5
_END_WITHIN_S = 20.0

_LAUNCHES = 3
"""Of one node. Ray gives a node 30 s to start, which a busy machine may not leave it."""

_AT_ONCE, _AT_ONCE_PER_CORE = 6, 3
"""Nodes that start at the same time: enough to keep the cores busy while some wait for others."""

_Key = tuple[int, int]
"""A host: its slice's index and its worker id."""

_Due = tuple[_Key | None, nodes.NodePlan]
"""A node to start; ``None`` stands for the head."""


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
        self._told_to_stop, self._told_to_make = threading.Event(), threading.Event()
        self._head: nodes.Launcher | None = None
        self._hosts: dict[_Key, nodes.Launcher] = {}
        self._starting: dict[_Key | None, nodes.Launcher] = {}
        self._ports: dict[_Key, int] = {}
        self._awaited: dict[int, float] = {}
        """When to make which slice, on the clock of :func:`time.monotonic`."""
        self._tried: set[int] = set()
        self._making: int | None = None

    def run(self) -> int:
        """Bring the cluster up and stay with it to its end; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._told_to_stop.set())
        signal.signal(signal.SIGUSR1, lambda *_: self._told_to_make.set())
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
        self._bring_up([(None, layout.head(place, dashboard_port)), *self._host_plans(place, first)])
        self._prove(place, first)
        late_s = self._record.arrivals.late_s
        due_at = math.inf if late_s is None else time.monotonic() + late_s
        self._awaited = {index: due_at for index in range(len(self._shapes)) if index not in first}
        self._write(phase=Phase.READY, detail=self._faults())

    def _stay(self, place: environment.ClusterPlace) -> NoReturn:
        """Watch, and make what is awaited once its time has come."""
        while True:
            self._tick(_WATCH_TICK_S)
            if self._told_to_make.is_set():
                self._told_to_make.clear()
                self._awaited = dict.fromkeys(self._awaited, 0.0)
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

    def _host_plans(self, place: environment.ClusterPlace, indices: Iterable[int]) -> Iterator[_Due]:
        """The hosts of these slices."""
        for index in indices:
            part = self._record.slices[index]
            for worker in range(len(part.hosts)):
                key = index, worker
                if key not in self._ports:
                    self._ports[key] = self._machine.port()
                yield key, layout.host(place, part, index, worker, self._ports[key])

    def _bring_up(self, due: list[_Due]) -> None:
        """Launch all that is *due* and wait until every node is up; only some at once, for Ray's patience is 30 s."""
        try:
            self._launch_all(due)
        finally:
            for key, launcher in self._starting.items():
                # Of what has ended while it was looked after here, nobody hears again.
                if key is not None and not launcher.process.alive():
                    self._hosts.pop(key).close()
            self._starting = {}

    def _launch_all(self, due: list[_Due]) -> None:
        total, deadline = len(due), time.monotonic() + START_WITHIN_S
        launches = collections.Counter[_Key | None]()
        starting = self._starting
        at_once = max(_AT_ONCE, _AT_ONCE_PER_CORE * (os.cpu_count() or 1))
        while due or starting:
            while due and len(starting) < at_once:
                key, plan = due.pop(0)
                starting[key] = nodes.launch(plan)
                launches[key] += 1
                self._note_launched(key, starting[key])
            for key, launcher in list(starting.items()):
                try:
                    if not self._is_up(key, launcher):
                        continue
                except NotUpError as error:
                    if launches[key] == _LAUNCHES:
                        raise
                    _log.warning("%s It is launched again.", error.cause)
                    self._clear_away(key, launcher)
                    due.append((key, launcher.plan))
                del starting[key]
                self._note_progress(total - len(due) - len(starting), total)
            if time.monotonic() > deadline:
                raise NotUpError(
                    f"{len(due) + len(starting)} of {total} Ray nodes are not up after {START_WITHIN_S:.0f} s."
                )
            self._tick(_STARTING_TICK_S)

    def _clear_away(self, key: _Key | None, launcher: nodes.Launcher) -> None:
        """Leave nothing of a node that did not start."""
        if key is None:
            self._head = None
        else:
            del self._hosts[key]
        launcher.close()
        end(lambda: [launcher.process] if launcher.process.alive() else [], _END_WITHIN_S)
        _clear(launcher.plan.temp)

    def _note_progress(self, up: int, total: int) -> None:
        starts = self._record.phase is Phase.STARTING
        self._write(detail=f"{up} of {total} Ray nodes up" if starts else self._faults())

    def _note_launched(self, key: _Key | None, launcher: nodes.Launcher) -> None:
        if key is None:
            self._head = launcher
        else:
            self._hosts[key] = launcher

    def _is_up(self, key: _Key | None, launcher: nodes.Launcher) -> bool:
        report = launcher.report()
        if report is None:
            return False
        if "error" in report:
            raise NotUpError(f"The Ray node at {launcher.plan.ip} did not start: {report['error']}.")
        if key is not None:
            self._record = self._record.with_host(*key, launcher=launcher.process, raylet=report["raylet"])
        return True

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
        leaving = {index for index, _ in self._hosts} & set(self._awaited)
        for index in leaving:
            # Again, for a launcher that was forked a moment before the first time was deaf.
            self._end_hosts(index)
        now = time.monotonic()
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
                _clear(plan.temp)
            self._bring_up(plans)
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
        self._end_hosts(index)
        hosts = tuple(replace(host, alive=False) for host in self._record.slices[index].hosts)
        self._record = self._record.with_slice(index, hosts=hosts, awaited=why)
        heal_s = self._record.arrivals.heal_s
        self._awaited[index] = time.monotonic() + (HEAL_S if heal_s is None else heal_s)
        self._write(detail=self._faults())

    def _end_hosts(self, index: int) -> None:
        for (of, _), launcher in self._hosts.items():
            if of == index:
                launcher.process.signal(signal.SIGTERM)

    def _tick(self, wait_s: float) -> None:
        """Wait a little, then look who died and whether to go on."""
        if self._told_to_stop.wait(wait_s):
            raise _Stop("told to stop")
        silent_s = self._heartbeat.silence()
        if silent_s is None:
            raise _Stop("its folder is gone")
        if silent_s > (ttl_s := state.raised_ttl(self._folder, self._record.ttl_s)):
            raise _Stop(f"no sign of life from Airflow for {silent_s:.0f} s (ttl {ttl_s:.0f} s)")
        ended = reap()
        # What is just being launched says itself why it ended.
        if self._head is not None and self._head.process.pid in ended and None not in self._starting:
            raise ClusterError("The Ray head died.")
        lost = [
            key for key, launcher in self._hosts.items() if launcher.process.pid in ended and key not in self._starting
        ]
        for key in lost:
            self._hosts.pop(key).close()
        # What is just being made comes last, for its loss ends this look.
        for index, worker in sorted(lost, key=lambda key: key[0] == self._making):
            self._lose(index, worker)

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


def _clear(temp: Path) -> None:
    """Leave nothing of an earlier node: Ray's agents take a minute to notice that their launcher was killed."""
    if left := end(lambda: list(writers(temp)), _END_WITHIN_S):
        raise NotUpError(f"Processes {[each.pid for each in left]} of an earlier host do not end.")
    shutil.rmtree(temp, ignore_errors=True)


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
