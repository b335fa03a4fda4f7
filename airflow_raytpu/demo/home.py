"""Where one demo lives: its folders, its ports, and the environment of its processes. Linux only."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from airflow_raytpu.model.errors import PathError

MARK = "RAYTPU_DEMO_HOME"
"""Environment variable that every process of a demo inherits; its value is the demo's root."""

_DROPPED_PREFIXES = (
    *("AIRFLOW", "RAY", "SERVE_", "JAX", "XLA", "TPU", "LIBTPU"),
    *("PYTHON", "VIRTUAL_ENV", "CONDA_", "MAKE"),
)
_DROPPED = {"MFLAGS"} | {
    name
    for proxy in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "grpc_proxy")
    for name in (proxy, proxy.upper())
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoHome:
    """One demo's places.

    :param root: the folder ``.demo`` of a clone; all that a demo writes is in it or in :attr:`simulated`.
    :param dags: the folder of example DAGs.
    :param port: of Airflow's UI and API, on the loopback interface.
    """

    root: Path
    dags: Path
    port: int = 8080

    @property
    def airflow(self) -> Path:
        return self.root / "airflow"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def storage(self) -> Path:
        return self.root / "storage"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def simulated(self) -> Path:
        """State of simulated clusters. Under /tmp because Unix sockets allow 107 bytes, and a clone may lie deep."""
        return Path(f"/tmp/raytpu-{os.getuid()}-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:6]}")  # noqa: S108 - owner and mode are checked

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    def make_root(self) -> None:
        """:raises PathError: it cannot be made."""
        with _path_errors(self.root):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def prepare(self, *, keep: bool = False) -> None:
        """Make the folders; without *keep* they start empty.

        :raises PathError: they cannot be written, or the folder under /tmp is somebody else's.
        """
        self.make_root()
        with _path_errors(self.root):
            if not keep:
                self._clear()
            for folder in (self.airflow, self.logs, self.storage, self.simulated):
                folder.mkdir(mode=0o700, exist_ok=True)
        place = self.simulated.lstat()
        if place.st_uid != os.getuid() or not stat.S_ISDIR(place.st_mode):
            raise PathError(f"{self.simulated} is not a folder of yours.", "Remove it, or have its owner do that.")

    def open_lock(self) -> IO[str]:
        """The lock file, made where it is missing.

        :raises PathError: it cannot be written.
        """
        self.make_root()
        with _path_errors(self.lock):
            return self.lock.open("a+")

    def remove(self) -> None:
        """Remove all that a demo wrote."""
        shutil.rmtree(self.simulated, ignore_errors=True)
        shutil.rmtree(self.root, ignore_errors=True)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """*base* for the demo's processes, without what would steer Airflow, Ray, JAX or Python from outside."""
        kept = {
            name: value
            for name, value in base.items()
            if name not in _DROPPED and not name.startswith(_DROPPED_PREFIXES)
        }
        return kept | {
            MARK: str(self.root),
            "AIRFLOW_HOME": str(self.airflow),
            "RAYTPU_SIM_ROOT": str(self.simulated),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{base.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            # Airflow renames its processes, which wipes /proc/<pid>/environ and with it the mark.
            "SPT_NOENV": "1",
        }

    def _clear(self) -> None:
        shutil.rmtree(self.simulated, ignore_errors=True)
        for folder in (self.airflow, self.logs, self.storage):
            if folder.exists():
                shutil.rmtree(folder)


@contextlib.contextmanager
def _path_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PathError(
            f"{error.filename or place} cannot be written: {error.strerror}.",
            "Free space there, or see its owner and mode.",
        ) from error


def repository() -> Path:
    """The clone that this package runs from.

    :raises PathError: it was installed without one.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "dags").is_dir():
        raise PathError(f"{root} has no folder dags.", "Run the demo from a clone of the repository: make demo.")
    return root
