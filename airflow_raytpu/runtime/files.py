"""Whole files by URI through pyarrow, as the cluster sees them: ``file:///path`` and ``gs://bucket/path``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from airflow_raytpu.model.errors import PathError

_NO_PATH = "Use gs://bucket/path, or file:///absolute/path on a disk that every host shares."


def locate(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of *uri* and the path on it. URIs are percent-encoded.

    :raises PathError: neither ``gs://`` nor an absolute path.
    """
    parts = urlsplit(uri)
    if parts.scheme in ("", "file") and parts.path.startswith("/"):
        return fs.LocalFileSystem(), unquote(parts.path) if parts.scheme else uri
    if parts.scheme == "gs" and parts.netloc:
        filesystem, path = fs.FileSystem.from_uri(uri)
        return filesystem, path
    raise PathError(f"{uri!r} names no place this cluster can reach.", _NO_PATH)


def native(uri: str) -> str:
    """*uri* as Orbax and Ray take it: a plain path on disk, the URI itself elsewhere."""
    filesystem, path = locate(uri)
    return path if isinstance(filesystem, fs.LocalFileSystem) else unquote(uri)


def read_bytes(uri: str) -> bytes | None:
    """The whole content, ``None`` where there is no such file."""
    filesystem, path = locate(uri)
    try:
        with filesystem.open_input_stream(path) as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def read_json(uri: str) -> Any:
    """The content as JSON, ``None`` where there is no such file.

    :raises ValueError: it is not JSON.
    """
    data = read_bytes(uri)
    return None if data is None else json.loads(data)


def write_bytes(uri: str, data: bytes) -> None:
    """Write the whole file at once: a reader sees the old content or the new, never a part."""
    filesystem, path = locate(uri)
    if not isinstance(filesystem, fs.LocalFileSystem):
        # An object appears only when its upload is complete.
        with filesystem.open_output_stream(path) as stream:
            stream.write(data)
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(target)


def write_json(uri: str, value: Any) -> None:
    """:func:`write_bytes` of *value* as JSON."""
    write_bytes(uri, json.dumps(value, allow_nan=False).encode())


def make_folder(uri: str) -> None:
    """Make the folder *uri* where folders are a thing of their own; one that is there is no error.

    :raises OSError: storage refuses.
    """
    filesystem, path = locate(uri)
    if isinstance(filesystem, fs.LocalFileSystem):
        filesystem.create_dir(path, recursive=True)


def remove(uri: str) -> None:
    """Remove a file, or a folder with all in it; nothing there is no error."""
    filesystem, path = locate(uri)
    kind = filesystem.get_file_info(path).type
    if kind is fs.FileType.File:
        filesystem.delete_file(path)
    elif kind is fs.FileType.Directory:
        filesystem.delete_dir(path)


def children(uri: str) -> list[str]:
    """Names of the files and folders right under *uri*; none where it does not exist."""
    filesystem, path = locate(uri)
    found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return sorted(info.base_name for info in found)


def sizes(uri: str) -> dict[str, int]:
    """Every file below *uri*, by its path from there, in bytes; none where it does not exist."""
    filesystem, path = locate(uri)
    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    top = path.rstrip("/") + "/"
    return {info.path.removeprefix(top): info.size for info in found if info.type is fs.FileType.File}
