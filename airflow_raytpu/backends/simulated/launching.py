"""Launching Ray nodes: some at a time, again where one does not start, and nothing left of one that did not.

Called by the supervisor alone, which looks after what is up.
"""

from __future__ import annotations

import collections
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from airflow_raytpu.backends.simulated import nodes
from airflow_raytpu.backends.simulated.nodes import NotUpError
from airflow_raytpu.backends.simulated.processes import ProcessId, end, writers
from airflow_raytpu.model.errors import ClusterError

_log = logging.getLogger("raytpu.supervisor")

START_WITHIN_S = 180.0
_TICK_S = 0.05
_END_WITHIN_S = 20.0

_LAUNCHES = 3
"""Of one node. Ray gives a node 30 s to start, which a busy machine may not leave it."""

_AT_ONCE, _AT_ONCE_PER_CORE = 6, 3
"""Nodes that start at the same time: enough to keep the cores busy while some wait for others."""

Key = tuple[int, int]
"""A host: its slice's index and its worker id."""

Due = tuple[Key | None, nodes.NodePlan]
"""A node to start; ``None`` stands for the head."""

CameUp = Callable[[Key | None, ProcessId, int, str], None]


class Fleet:
    """The launchers of one cluster.

    :param tick: waits so many seconds and looks at everything else; what it raises ends a launch.
    :param came_up: told of each node that is up: its launcher, the pid of its raylet, and for people how far it is.
    """

    def __init__(self, tick: Callable[[float], None], came_up: CameUp) -> None:
        self._tick = tick
        self._came_up = came_up
        self._head: nodes.Launcher | None = None
        self._hosts: dict[Key, nodes.Launcher] = {}
        self._starting: dict[Key | None, nodes.Launcher] = {}

    def bring_up(self, due: list[Due]) -> None:
        """Launch all that is *due* and wait until every node is up; only some at once, for Ray's patience is 30 s.

        :raises NotUpError: one of them does not come up.
        """
        try:
            self._launch_all(due)
        finally:
            for key, launcher in self._starting.items():
                # Of what has ended while it was looked after here, nobody hears again.
                if key is not None and not launcher.process.alive():
                    self._hosts.pop(key).close()
            self._starting = {}

    def without(self, ended: set[int]) -> list[Key]:
        """The hosts whose launchers are among the processes that have *ended*; they are forgotten.

        :raises ClusterError: the head's is.
        """
        # What is just being launched says itself why it ended.
        if self._head is not None and self._head.process.pid in ended and None not in self._starting:
            raise ClusterError("The Ray head died.")
        lost = [
            key for key, launcher in self._hosts.items() if launcher.process.pid in ended and key not in self._starting
        ]
        for key in lost:
            self._hosts.pop(key).close()
        return lost

    def slices(self) -> set[int]:
        """The indices of the slices of which a host is left."""
        return {index for index, _ in self._hosts}

    def end_slice(self, index: int, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the hosts of a slice to end; they have ended once :meth:`without` has told of them."""
        for (of, _), launcher in self._hosts.items():
            if of == index:
                launcher.process.signal(number)

    def _launch_all(self, due: list[Due]) -> None:
        total, deadline = len(due), time.monotonic() + START_WITHIN_S
        launches = collections.Counter[Key | None]()
        starting = self._starting
        at_once = max(_AT_ONCE, _AT_ONCE_PER_CORE * (os.cpu_count() or 1))
        while due or starting:
            while due and len(starting) < at_once:
                key, plan = due.pop(0)
                self._launch(key, plan)
                launches[key] += 1
            for key, launcher in list(starting.items()):
                try:
                    raylet = _raylet(launcher)
                except NotUpError as error:
                    if launches[key] == _LAUNCHES:
                        raise
                    _log.warning("%s It is launched again.", error.cause)
                    del starting[key]
                    self._clear_away(key, launcher)
                    due.append((key, launcher.plan))
                    continue
                if raylet is not None:
                    del starting[key]
                    up = total - len(due) - len(starting)
                    self._came_up(key, launcher.process, raylet, f"{up} of {total} Ray nodes up")
            if time.monotonic() > deadline:
                raise NotUpError(
                    f"{len(due) + len(starting)} of {total} Ray nodes are not up after {START_WITHIN_S:.0f} s."
                )
            self._tick(_TICK_S)

    def _launch(self, key: Key | None, plan: nodes.NodePlan) -> None:
        try:
            launcher = self._starting[key] = nodes.launch(plan)
        except OSError as error:
            raise NotUpError(f"The Ray node at {plan.ip} cannot be launched: {error}.") from error
        if key is None:
            self._head = launcher
        else:
            self._hosts[key] = launcher

    def _clear_away(self, key: Key | None, launcher: nodes.Launcher) -> None:
        """Leave nothing of a node that did not start."""
        if key is None:
            self._head = None
        else:
            del self._hosts[key]
        launcher.close()
        end(lambda: [launcher.process] if launcher.process.alive() else [], _END_WITHIN_S)
        clear(launcher.plan.temp)


def clear(temp: Path) -> None:
    """Leave nothing of an earlier node: Ray's agents take a minute to notice that their launcher was killed.

    :raises NotUpError: a process of it does not end.
    """
    if left := end(lambda: list(writers(temp)), _END_WITHIN_S):
        raise NotUpError(f"Processes {[each.pid for each in left]} of an earlier host do not end.")
    shutil.rmtree(temp, ignore_errors=True)


def _raylet(launcher: nodes.Launcher) -> int | None:
    """Its pid once the node is up.

    :raises NotUpError: it will not be.
    """
    report = launcher.report()
    if report is None:
        return None
    if "error" in report:
        raise NotUpError(f"The Ray node at {launcher.plan.ip} did not start: {report['error']}.")
    if not launcher.process.alive():
        # Its end is told once, and was of no interest while it was starting.
        raise NotUpError(f"The Ray node at {launcher.plan.ip} ended as soon as it was up.")
    return int(report["raylet"])
