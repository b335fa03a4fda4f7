"""Which process is meant: a pid alone is reused, so each comes with the moment it began. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "RAYTPU_SIM_CLUSTER"
"""Environment variable that every process of a cluster inherits; its value is the cluster's uid."""

NODES = "n"
"""Folder of a cluster in which its Ray nodes write; short, for the paths of their sockets are limited."""

_POLL_S = 0.05
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """One process and no other.

    :param began: boot id and start tick. Ticks count from boot, so a clock that is set does not change them.
    """

    pid: int
    began: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has *pid* now; ``None`` where none has, or it is a zombie."""
        began = _began(pid)
        return cls(pid=pid, began=began) if began else None

    @classmethod
    def own(cls) -> ProcessId:
        return cls(pid=os.getpid(), began=_began(os.getpid()))

    def alive(self) -> bool:
        return _began(self.pid) == self.began

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this process and no other; ``False`` where it has ended."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # The handle pins whoever has the pid now, so the check cannot be overtaken.
            if not self.alive():
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True


def members(uid: str, folder: Path) -> Iterator[ProcessId]:
    """Every process of the cluster *uid* in *folder*: it carries the cluster's mark, or writes into its nodes' folders.

    The mark alone is not enough: Ray's agents write their title over their first environment (setproctitle).
    """
    needle, nodes = f"{MARK}={uid}".encode(), f"{folder.resolve()}/{NODES}/"
    return _those(lambda process: _has_mark(process, needle) or _writes_into(process, nodes))


def writers(folder: Path) -> Iterator[ProcessId]:
    """Every process that has a file below *folder* open for writing."""
    prefix = f"{folder.resolve()}/"
    return _those(lambda process: _writes_into(process, prefix))


def _those(wanted: Callable[[str], bool]) -> Iterator[ProcessId]:
    """The processes whose folder in ``/proc`` is *wanted*."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and wanted(entry.path):
            process = ProcessId.of(int(entry.name))
            if process is not None:
                yield process


def _has_mark(process: str, needle: bytes) -> bool:
    with contextlib.suppress(OSError):  # it has just ended, or belongs to somebody else
        return needle in Path(process, "environ").read_bytes().split(b"\0")
    return False


def _writes_into(process: str, folder: str) -> bool:
    with contextlib.suppress(OSError), os.scandir(f"{process}/fd") as entries:
        return any(_is_open(process, entry.name, folder) for entry in entries)
    return False


def _is_open(process: str, number: str, folder: str) -> bool:
    with contextlib.suppress(OSError):  # closed meanwhile, which says nothing of the others
        file = str(Path(process, "fd", number).readlink())
        return file.startswith(folder) and _writable(f"{process}/fdinfo/{number}")
    return False


def _writable(fdinfo: str) -> bool:
    # Only writers belong to the cluster: a person's ``tail -f`` does not.
    flags = next(line for line in Path(fdinfo).read_text().splitlines() if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


def family() -> list[ProcessId]:
    """Every living descendant of this process. What has ended among its children is waited for first."""
    import psutil

    reap()
    processes = (ProcessId.of(child.pid) for child in psutil.Process().children(recursive=True))
    return [process for process in processes if process is not None]


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that :func:`family` misses none."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def signal_at_end_of_parent(number: signal.Signals) -> None:
    """Have the kernel send *number* here when the thread that forked this process ends (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def reap() -> set[int]:
    """Pids of the children that have ended since the last call."""
    ended: set[int] = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended.add(pid)


def end(find: Callable[[], Iterable[ProcessId]], within_s: float) -> list[ProcessId]:
    """Kill what *find* gives until it gives nothing; what is still there after *within_s* seconds is returned."""
    left: list[ProcessId] = []

    def gone() -> bool:
        left[:] = find()
        for process in left:
            process.signal(signal.SIGKILL)
        return not left

    wait_until(gone, within_s)
    return left


def wait_until(condition: Callable[[], bool], within_s: float) -> bool:
    """Look at *condition* again and again for at most *within_s* seconds; whether it came true."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _began(pid: int) -> str:
    with contextlib.suppress(OSError):
        # The name in brackets may hold spaces and brackets: fields count from the last bracket (proc(5)).
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if fields[0] not in {"Z", "X"}:
            return f"{_boot_id()}:{fields[19]}"
    return ""


@functools.cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
