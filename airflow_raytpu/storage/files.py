"""Objects as files on a disk. Called from :mod:`airflow_raytpu.storage.objects`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow_raytpu.model.errors import BackendUnreachable, PathError

_SHOWN = 5


class Files:
    """See :class:`airflow_raytpu.storage.objects.Store`."""

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise BackendUnreachable(
                f"{path} could not be read: {error.strerror}.", "See its owner and mode."
            ) from error

    def write(self, path: str, data: bytes, *, if_absent: bool) -> bool:
        if if_absent and Path(path).exists():
            return False
        try:
            _replace(Path(path), data)
        except OSError as error:
            raise BackendUnreachable(
                f"{path} could not be written: {error.strerror}.",
                "Free space there, or see the folder's owner and mode.",
            ) from error
        return True

    def size(self, path: str) -> int | None:
        file = Path(path)
        return file.stat().st_size if file.is_file() else None

    def names(self, path: str) -> list[str]:
        return [str(Path(folder) / name) for folder, _, files in os.walk(path) for name in files]

    def check_writable(self, path: str) -> None:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path, prefix=".check-") as probe:
                probe.write(b"\0" * 4096)
        except OSError as error:
            raise PathError(
                f"{path} cannot be written: {error.strerror}.",
                "Give storage_path a folder that this worker and the cluster can both write, or a gs:// address.",
            ) from error

    def check_readable(self, path: str) -> None:
        place = Path(path)
        found = [place] if place.exists() else list(Path("/").glob(path[1:]))
        if not found:
            raise PathError(f"{path} does not exist.", _nearest(place))
        for name in found:
            if name.is_dir() and not any(name.iterdir()):
                raise PathError(f"The folder {name} is empty.", "See that the task that writes it ran before this one.")
            if not os.access(name, os.R_OK):
                raise PathError(f"{name} cannot be read: Permission denied.", "See its owner and mode.")


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".write-")
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # mkstemp makes it private; the cluster may run as another user of the same group.
        draft.chmod(0o644)
        draft.replace(path)
    except BaseException:
        draft.unlink()
        raise


def _nearest(path: Path) -> str:
    """The closest folder above that exists, and what it holds."""
    folder = next(parent for parent in path.parents if parent.exists())
    try:
        names = sorted(child.name for child in folder.iterdir())
    except OSError as error:
        return f"{folder} is there but cannot be listed: {error.strerror}."
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"{folder} is there and holds {shown or 'nothing'}."
