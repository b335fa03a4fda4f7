"""One demo at a time in one clone: a lock that the kernel takes back when its holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.demo.home import DemoHome
from airflow_raytpu.model.errors import RequestError


@contextmanager
def held(home: DemoHome) -> Iterator[None]:
    """Hold the demo's lock for life.

    :raises RequestError: another demo holds it.
    """
    with home.open_lock() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = owner(home)
            raise RequestError(
                f"A demo of this clone runs already{f' (pid {holder.pid})' if holder else ''}.",
                "Stop it with Ctrl-C in its terminal, or with: make clean-demo.",
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def owner(home: DemoHome) -> ProcessId | None:
    """The demo that holds the lock of *home*; ``None`` where none does."""
    try:
        with home.lock.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                text = lock.read()
    except FileNotFoundError:
        return None
    return ProcessId.of(int(text)) if text.isdigit() else None
