"""The process that owns one simulated cluster: ``python -m airflow_raytpu.backends.simulated.supervisor FOLDER``.

It starts the Ray nodes, proves the slices, then watches until it is told to stop, nobody has given a sign of life for
the TTL, or the head is lost. Whatever ends it ends every Ray process: by its own hand, or by the kernel's.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_raytpu.backends.simulated import cluster, environment, nodes, proof, seen, state, witness
from airflow_raytpu.backends.simulated.claims import Machine, folder_claim
from airflow_raytpu.backends.simulated.processes import NODES, ProcessId, adopt_orphans, end, family, members, reap
from airflow_raytpu.backends.simulated.state import Host, Phase, Record, Slice
from airflow_raytpu.model.errors import ClusterError, RayTpuError

_log = logging.getLogger("raytpu.supervisor")

START_WITHIN_S = 180.0
_STARTING_TICK_S, _WATCH_TICK_S = 0.05, 0.5
_END_WITHIN_S = 20.0
_HEAD_STORE, _HOST_STORE = 200_000_000, 100_000_000
_HEAD_CPUS, _HOST_CPUS = 2, 4


_AT_ONCE, _AT_ONCE_PER_CORE = 6, 3
"""Nodes that start at the same time: enough to keep the cores busy while some wait for others."""

_Due = tuple[tuple[int, int] | None, nodes.NodePlan]
"""A node to start, with its slice's index and its worker id; ``None`` for the head."""


class _Stop(Exception):
    """The cluster is no longer wanted."""


class Supervisor:
    """One cluster from its first process to its last."""

    def __init__(self, folder: Path, record: Record) -> None:
        self._folder = folder
        self._record = record
        self._due = seen.slices_due(record)
        self._shapes = list(self._due.values())
        self._machine = Machine()
        self._heartbeat = _Heartbeat(folder)
        self._told_to_stop = threading.Event()
        self._head: nodes.Launcher | None = None
        self._hosts: dict[tuple[int, int], nodes.Launcher] = {}

    def run(self) -> int:
        """Bring the cluster up and stay with it to its end; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._told_to_stop.set())
        adopt_orphans()
        try:
            self._write(supervisor=ProcessId.own(), detail="importing Ray")
            self._start()
            while True:
                self._tick(_WATCH_TICK_S)
        except _Stop as reason:
            _log.info("stopping: %s", reason)
            self._last_words(Phase.STOPPING, str(reason))
            self._end_all()
            cluster.discard(self._folder)
            return 0
        except Exception as error:  # noqa: BLE001
            # Whatever it is, nothing may stay behind and people must read why.
            _log.exception("failed")
            self._end_all()
            self._last_words(Phase.FAILED, f"{_words(error)} See {self._folder / 'supervisor.log'}.")
            return 1

    def _start(self) -> None:
        place = self._place()
        chosen = environment.cluster_environment(os.environ, place, self._shapes[0].chips_per_host)
        os.environ.clear()
        os.environ.update(chosen)
        witness.import_ray()
        dashboard_port = self._machine.port()
        self._write(
            address=place.address,
            dashboard=f"http://127.0.0.1:{dashboard_port}",
            endpoint=place.endpoint,
            slices=self._slices(place),
            detail="starting the Ray nodes",
        )
        self._bring_up(self._plans(place, dashboard_port))
        self._prove(place)
        self._write(phase=Phase.READY, detail="")

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

    def _slices(self, place: environment.ClusterPlace) -> tuple[Slice, ...]:
        number = itertools.count()
        return tuple(
            Slice(
                name=name,
                shape=str(shape),
                chips_per_host=shape.chips_per_host,
                hosts=tuple(Host(worker_id=worker, ip=place.host_ip(next(number))) for worker in range(shape.hosts)),
            )
            for name, shape in self._due.items()
        )

    def _plans(self, place: environment.ClusterPlace, dashboard_port: int) -> list[_Due]:
        """The Ray nodes to start, the head first."""
        folder = self._folder / NODES
        folder.mkdir(exist_ok=True)
        head = nodes.NodePlan(
            ip=place.head_ip,
            temp=folder / "h",
            gcs=place.address,
            cpus=_HEAD_CPUS,
            object_store=_HEAD_STORE,
            dashboard_port=dashboard_port,
        )
        return [(None, head), *self._host_plans(place, folder)]

    def _host_plans(self, place: environment.ClusterPlace, folder: Path) -> Iterator[_Due]:
        for index, (part, shape) in enumerate(zip(self._record.slices, self._shapes, strict=True)):
            for host in part.hosts:
                worker, port = host.worker_id, self._machine.port()
                yield (
                    (index, worker),
                    nodes.NodePlan(
                        ip=host.ip,
                        temp=folder / f"{index}.{worker}",
                        gcs=place.address,
                        cpus=_HOST_CPUS,
                        chips=part.chips_per_host,
                        object_store=_HOST_STORE,
                        environment=environment.host_environment(shape, part.name, worker, port),
                    ),
                )

    def _bring_up(self, due: list[_Due]) -> None:
        """Launch all that is *due* and wait until every node is up; only some at once, for Ray's patience is 30 s."""
        total, deadline = len(due), time.monotonic() + START_WITHIN_S
        starting: dict[tuple[int, int] | None, nodes.Launcher] = {}
        at_once = max(_AT_ONCE, _AT_ONCE_PER_CORE * (os.cpu_count() or 1))
        while due or starting:
            while due and len(starting) < at_once:
                key, plan = due.pop(0)
                starting[key] = nodes.launch(plan)
                self._note_launched(key, starting[key])
            for key in [key for key, launcher in starting.items() if self._is_up(key, launcher)]:
                del starting[key]
                self._write(detail=f"{total - len(due) - len(starting)} of {total} Ray nodes up")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{len(due) + len(starting)} of {total} Ray nodes are not up after {START_WITHIN_S:.0f} s."
                )
            self._tick(_STARTING_TICK_S)

    def _note_launched(self, key: tuple[int, int] | None, launcher: nodes.Launcher) -> None:
        if key is None:
            self._head = launcher
        else:
            self._hosts[key] = launcher

    def _is_up(self, key: tuple[int, int] | None, launcher: nodes.Launcher) -> bool:
        report = launcher.report()
        if report is None:
            return False
        if "error" in report:
            raise ClusterError(f"The Ray node at {launcher.plan.ip} did not start: {report['error']}.")
        if key is not None:
            self._record = self._record.with_host(*key, launcher=launcher.process, raylet=report["raylet"])
        return True

    def _prove(self, place: environment.ClusterPlace) -> None:
        wanted = [proof.SliceShould.of(name, shape) for name, shape in self._due.items()]
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            found = proof.faults(witness.ray_nodes(place.address), wanted)
            missing = found or witness.api_fault(self._record.dashboard, self._folder / "token")
            if not missing:
                return
            if time.monotonic() > deadline:
                raise ClusterError(f"The slices are not whole after {START_WITHIN_S:.0f} s: {'; '.join(missing)}.")
            self._tick(_STARTING_TICK_S)

    def _tick(self, wait_s: float) -> None:
        """Wait a little, then look who died and whether to go on."""
        if self._told_to_stop.wait(wait_s):
            raise _Stop("told to stop")
        silent_s = self._heartbeat.silence()
        if silent_s is None:
            raise _Stop("its folder is gone")
        if silent_s > self._record.ttl_s:
            raise _Stop(f"no sign of life from Airflow for {silent_s:.0f} s (ttl {self._record.ttl_s:.0f} s)")
        ended = reap()
        if self._head is not None and self._head.process.pid in ended:
            raise ClusterError("The Ray head died.")
        for (index, worker), launcher in self._hosts.items():
            if launcher.process.pid in ended:
                self._lose(index, worker)

    def _lose(self, index: int, worker: int) -> None:
        if self._record.phase is Phase.STARTING:
            raise ClusterError(f"Host {worker} of slice {self._record.slices[index].name} died while starting.")
        self._record = self._record.with_host(index, worker, alive=False)
        self._write(detail="; ".join(part.fault for part in self._record.slices if not part.whole))

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


class _Heartbeat:
    """How long nobody has shown interest. Only changes of the file's time count, so no step of the clock matters."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "heartbeat"
        self._last = 0
        self._seen_at = time.monotonic()

    def silence(self) -> float | None:
        """Seconds since the last sign; ``None`` where the folder is gone."""
        try:
            last = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        now = time.monotonic()
        if last != self._last:
            self._last, self._seen_at = last, now
        return now - self._seen_at


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
