"""The process that owns a demo: ``python -m airflow_raytpu.demo.guardian SIMULATED COMMAND...``.

It starts COMMAND, adopts every process that comes of it, and ends them all when its standard input ends or says so:
however the demo itself goes, by ``kill -9`` too, the kernel closes that pipe.
Started by :mod:`airflow_raytpu.demo.running`.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from airflow_raytpu.demo import processes

STOP, NOW = b"stop\n", b"now\n"

_TICK_MS = 250


class Guardian:
    """Waits for the end, then brings it about."""

    def __init__(self, simulated: Path) -> None:
        self.simulated = simulated
        self.over = False
        self.hurried = False

    def run(self, command: list[str]) -> int:
        """Keep *command* running; its exit status, 0 if it was told to end."""
        processes.adopt_orphans()
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._finish)
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - our own launcher
        status = 0
        while not self.over:
            self._listen(_TICK_MS)
            ended = processes.reap()
            if child.pid in ended:
                status = ended[child.pid] or 1
                break
        processes.end(lambda: processes.below(os.getpid()), self._hurry)
        shutil.rmtree(self.simulated, ignore_errors=True)
        return status

    def _listen(self, timeout_ms: int) -> None:
        poll = select.poll()
        poll.register(0, select.POLLIN)
        if poll.poll(timeout_ms):
            said = os.read(0, 4096)
            # End of file, which a closed pipe gives for ever, means stop.
            self.over = True
            self.hurried = self.hurried or NOW.strip() in said

    def _hurry(self) -> bool:
        self._listen(0)
        return self.hurried

    def _finish(self, _number: int, _frame: FrameType | None) -> None:
        self.over = True


def main() -> int:
    # The demo reads our standard output; it may be gone.
    with contextlib.suppress(BrokenPipeError):
        return Guardian(Path(sys.argv[1])).run(sys.argv[2:])
    return 1


if __name__ == "__main__":
    sys.exit(main())
