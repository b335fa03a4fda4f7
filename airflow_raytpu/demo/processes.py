"""Which processes belong to a demo, and how all of them end. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.demo.home import MARK
from airflow_raytpu.model.errors import PlaceError

GRACE_S = 4.0
"""How long a process may take to end by itself: Airflow's API server would wait two minutes for an open browser."""

_KILL_S = 20.0
_POLL_S = 0.05
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def marked(root: Path) -> list[ProcessId]:
    """Every process of the demo in *root* and all below them, but not this one and those above it."""
    parents = _parents()
    needle = f"{MARK}={root}".encode()
    roots = [pid for pid in parents if needle in _environment(pid).split(b"\0")]
    spared = _line_up(os.getpid(), parents)
    return _identified((set(roots) | _below(roots, parents)) - spared)


def below(pid: int) -> list[ProcessId]:
    """Every living descendant of *pid*."""
    return _identified(_below([pid], _parents()))


def end(find: Callable[[], list[ProcessId]], hurry: Callable[[], bool] = lambda: False) -> None:
    """End what *find* gives: ask, wait for :data:`GRACE_S` or until *hurry*, then kill until it gives nothing.

    :raises PlaceError: something cannot be killed.
    """
    for process in find():
        process.signal(signal.SIGTERM)
    _wait(lambda: hurry() or not find(), GRACE_S)

    def gone() -> bool:
        left = find()
        for process in left:
            process.signal(signal.SIGKILL)
        return not left

    if not _wait(gone, _KILL_S):
        pids = ", ".join(str(process.pid) for process in find())
        raise PlaceError(f"Processes {pids} are still there {_KILL_S:.0f} s after SIGKILL.", "They hang in the kernel.")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none can slip away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """Get SIGTERM when *parent*, which must be this process's parent, ends in any way.

    :raises SystemExit: it has ended already.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(1)


def _wait(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        # Dead children stay in the process table until somebody waits for them.
        reap()
        time.sleep(_POLL_S)
    return True


def reap() -> dict[int, int]:
    """Collect children that have ended: pid to exit status (negative: the signal)."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _parents() -> dict[int, int]:
    parents = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                # The name in brackets may hold spaces and brackets: fields count from the last bracket (proc(5)).
                fields = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    return parents


def _below(roots: list[int], parents: dict[int, int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        new = [pid for pid in children.get(queue.pop(), []) if pid not in found]
        found.update(new)
        queue += new
    return found


def _line_up(pid: int, parents: dict[int, int]) -> set[int]:
    line = {pid}
    while (pid := parents.get(pid, 0)) > 0 and pid not in line:
        line.add(pid)
    return line


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has just ended, or belongs to somebody else
        return b""


def _identified(pids: set[int]) -> list[ProcessId]:
    return [process for pid in sorted(pids) if (process := ProcessId.of(pid))]
