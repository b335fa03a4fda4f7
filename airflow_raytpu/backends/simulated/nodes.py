"""One launcher per Ray node: a forked process that owns the node's Ray processes and dies with them, as a pod does.

Forking after ``import ray`` pays for the import once, gives each node an environment of its own, and lets all nodes
start at once. The kernel tells a launcher when the supervisor has ended, and kills Ray's processes when their launcher
has (PR_SET_PDEATHSIG), so nothing outlives a ``kill -9`` of either. Only the supervisor imports this module.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_raytpu.backends.simulated.processes import (
    ProcessId,
    adopt_orphans,
    end,
    family,
    signal_at_end_of_parent,
)
from airflow_raytpu.model.errors import ClusterError

_END_WITHIN_S = 10.0
_POLL_S = 0.05
_HEAD_WAIT_S = 60.0


class NotUpError(ClusterError):
    """A node that was started is of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One Ray node.

    :param dashboard_port: of the head; 0 makes it a host.
    :param environment: what this node has on top of the cluster's.
    :param object_store: bytes of shared memory.
    """

    ip: str
    temp: Path
    gcs: str
    cpus: int
    chips: int = 0
    object_store: int
    dashboard_port: int = 0
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> bool:
        return self.dashboard_port > 0


@dataclass(slots=True)
class Launcher:
    """The supervisor's end of one launcher."""

    plan: NodePlan
    process: ProcessId
    report_fd: int

    def close(self) -> None:
        """Once it has ended."""
        os.close(self.report_fd)

    def report(self) -> dict[str, Any] | None:
        """What the launcher said once its node was up: ``{"raylet": pid}`` or ``{"error": text}``; ``None`` before."""
        try:
            text = os.read(self.report_fd, 65_536)
        except BlockingIOError:
            return None
        return json.loads(text) if text else {"error": "its launcher ended without a word"}


def launch(plan: NodePlan) -> Launcher:
    """Fork the launcher of *plan*. Call it from the main thread: the launcher dies with the thread that forked it.

    :raises NotUpError: it ended at once.
    """
    pid, report_fd = _fork(lambda write_fd: _run(plan, write_fd))
    os.set_blocking(report_fd, False)
    process = ProcessId.of(pid)
    if process is None:
        os.close(report_fd)
        raise NotUpError(f"The launcher of the Ray node at {plan.ip} ended at once.", "See supervisor.log.")
    return Launcher(plan, process, report_fd)


def told_by_fork(question: Callable[[], Any], within_s: float = 30.0) -> Any:
    """The JSON value that *question* gives in a forked process; ``None`` where that ended without one.

    Ray's client starts threads, and what they hold at the time of a fork stays locked for ever in the launcher that is
    forked; so the supervisor never asks Ray anything itself.

    :param within_s: when it is ended, whatever it waits for: meanwhile the supervisor looks after nothing else.
    """

    def answer_in_time(write_fd: int) -> None:
        signal.setitimer(signal.ITIMER_REAL, within_s)
        _write_all(write_fd, json.dumps(question()))

    _, answer_fd = _fork(answer_in_time)
    with os.fdopen(answer_fd) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def _fork(body: Callable[[int], None]) -> tuple[int, int]:
    """Run *body* in a forked process, with a file descriptor to write to; its pid, and the other end."""
    read_fd, write_fd = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(read_fd)
        os.close(write_fd)
        raise
    if pid == 0:
        os.close(read_fd)
        _end_with(parent, lambda: body(write_fd))
    os.close(write_fd)
    return pid, read_fd


def _write_all(write_fd: int, text: str) -> None:
    with os.fdopen(write_fd, "w") as answer:
        answer.write(text)


def _end_with(parent: int, body: Callable[[], None]) -> None:
    """Run *body* and end this process and all below it, never returning into the supervisor's frames."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: _end())
        adopt_orphans()
        # A signal that can be caught: Ray's agents take a minute to notice by themselves that their GCS is gone.
        signal_at_end_of_parent(signal.SIGTERM)
        if os.getppid() == parent:
            body()
    except BaseException:  # noqa: BLE001 - it must not return into the supervisor's frames
        traceback.print_exc()
    _end()


def _end() -> None:
    end(family, _END_WITHIN_S)
    sys.stderr.flush()
    os._exit(1)


def _run(plan: NodePlan, report_fd: int) -> None:
    os.environ.update(plan.environment)
    try:
        node = _start(plan)
        _note_address(plan)
        vital = _vital_pids(node)
        report = {"raylet": node.all_processes["raylet"][0].process.pid}
    except Exception as error:  # noqa: BLE001 - told to the supervisor, which says it to people
        traceback.print_exc()
        report, vital = {"error": f"{type(error).__name__}: {error}"}, set()
    os.write(report_fd, json.dumps(report).encode()[:65_000])
    os.close(report_fd)
    if not vital:
        return
    threading.Thread(target=_publish_logs, args=(node,), daemon=True).start()
    # A node is lost when one of its Ray processes is: the rest ends with this process.
    while os.waitpid(-1, 0)[0] not in vital:
        continue


def _start(plan: NodePlan) -> Any:
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    params = RayParams(
        node_ip_address=plan.ip,
        num_cpus=plan.cpus,
        num_gpus=0,
        object_store_memory=plan.object_store,
        resources={"TPU": plan.chips} if plan.chips else {},
        min_worker_port=0,
        max_worker_port=0,
        temp_dir=str(plan.temp),
        dashboard_agent_listen_port=0,
        include_log_monitor=False,
    )
    if not plan.head:
        _wait_for_head(plan.gcs)
        params.update(gcs_address=plan.gcs)
        return Node(params, head=False, shutdown_at_exit=False, spawn_reaper=True)
    params.update(
        gcs_server_port=int(plan.gcs.rpartition(":")[2]),
        dashboard_host="127.0.0.1",
        dashboard_port=plan.dashboard_port,
        include_dashboard=True,
        no_monitor=True,
        session_name="s",
    )
    return _head_class(Node)(params, head=True, shutdown_at_exit=False, spawn_reaper=True)


def _note_address(plan: NodePlan) -> None:
    """Do as ``ray start`` does: without it Ray's job supervisor takes any GCS that it finds among the processes."""
    from ray._private.utils import write_ray_address

    write_ray_address(plan.gcs, str(plan.temp))


def _head_class(node: type[Any]) -> type[Any]:
    class Head(node):  # type: ignore[misc]  # Ray is not typed
        """Starts the dashboard after the raylet, so that hosts need not wait for the dashboard's imports."""

        def start_api_server(self, **arguments: Any) -> None:
            self._dashboard_arguments = arguments

        def start_ray_processes(self) -> None:
            super().start_ray_processes()
            super().start_api_server(**self._dashboard_arguments)

    return Head


def _vital_pids(node: Any) -> set[int]:
    return {info.process.pid for kind in node.all_processes.values() for info in kind}


def _wait_for_head(gcs: str) -> None:
    # Node() itself looks only every 1 or 2 seconds.
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    deadline = time.monotonic() + _HEAD_WAIT_S
    while True:
        try:
            if GcsClient(address=gcs).get_all_node_info(timeout=5):
                return
        except Exception as error:  # Ray raises RpcError, RuntimeError and others while the head is coming up
            if time.monotonic() > deadline:
                raise TimeoutError(f"no head at {gcs} within {_HEAD_WAIT_S:.0f} s: {error}") from error
        time.sleep(_POLL_S)


def _publish_logs(node: Any) -> None:
    """Ray's log monitor, which carries workers' output to drivers; in this process it costs no import of its own."""
    from ray._private.log_monitor import LogMonitor, is_proc_alive

    while True:
        try:
            LogMonitor(node.node_ip_address, node.get_logs_dir_path(), node.get_gcs_client(), is_proc_alive).run()
        except Exception:  # noqa: BLE001 - as Ray's own does, it goes on after any error
            traceback.print_exc()
            time.sleep(1)
