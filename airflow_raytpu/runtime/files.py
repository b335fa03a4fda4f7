"""Whole files by URI, as the cluster sees them: ``file:///path`` and ``gs://bucket/path``."""

from __future__ import annotations

import functools
import json
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.runtime import buckets

ARROW_PATIENCE_S = 300
"""For so long Arrow asks again. It waits 120 s for a server that says nothing (26.0), and would ask for 15 minutes."""

_NO_PATH = "Use gs://bucket/path, or file:///absolute/path on a disk that every host shares."


def locate(uri: str) -> tuple[fs.FileSystem, str]:
    """Arrow's file system of *uri* and the path on it, for those who read parts of files, and for Ray.

    :raises PathError: neither ``gs://`` nor an absolute path.
    """
    bucket, path = _split(uri)
    return (_arrow_gcs(), bucket) if bucket else (fs.LocalFileSystem(), path)


def in_bucket(uri: str) -> bool:
    """Whether *uri* is in Google Cloud Storage."""
    return bool(_split(uri)[0])


def native(uri: str) -> str:
    """*uri* as Orbax takes it: a plain path on disk, the URI itself elsewhere."""
    bucket, path = _split(uri)
    if not bucket:
        return path
    _tune_gcsfs()
    return f"gs://{bucket}"


def read_bytes(uri: str) -> bytes | None:
    """The whole content, ``None`` where there is no such file."""
    bucket, path = _split(uri)
    if bucket:
        return buckets.read(bucket)
    try:
        return Path(path).read_bytes()
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
    bucket, path = _split(uri)
    if bucket:
        buckets.write(bucket, data)
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


def add_json(uri: str, value: Any) -> bool:
    """As :func:`write_json`, but in a bucket only where nothing is; whether it was written.

    On a disk what is there is replaced: not every disk that hosts share can tell.
    """
    bucket, _ = _split(uri)
    if bucket:
        return buckets.add(bucket, json.dumps(value, allow_nan=False).encode())
    write_json(uri, value)
    return True


def make_folder(uri: str) -> None:
    """Make the folder *uri*, which proves that something can be written there; one that is there is no error.

    :raises OSError: storage refuses.
    """
    bucket, path = _split(uri)
    if bucket:
        buckets.mark(bucket)
    else:
        Path(path).mkdir(parents=True, exist_ok=True)


def remove(uri: str) -> None:
    """Remove a file, or a folder with all in it; nothing there is no error."""
    bucket, path = _split(uri)
    if bucket:
        buckets.remove(bucket)
    elif Path(path).is_dir():
        shutil.rmtree(path)
    else:
        Path(path).unlink(missing_ok=True)


def children(uri: str) -> list[str]:
    """Names of the files and folders right under *uri*; none where it does not exist."""
    bucket, path = _split(uri)
    if bucket:
        return buckets.children(bucket)
    try:
        return sorted(found.name for found in Path(path).iterdir())
    except FileNotFoundError:
        return []


def sizes(uri: str) -> dict[str, int]:
    """Every file below *uri*, by its path from there, in bytes; none where it does not exist."""
    bucket, path = _split(uri)
    if bucket:
        return buckets.sizes(bucket)
    found = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    return {file.relative_to(path).as_posix(): file.stat().st_size for file in found}


def _split(uri: str) -> tuple[str, str]:
    """``bucket/path`` of an address in storage, or a path on disk; the other is empty. URIs are percent-encoded.

    :raises PathError: it is neither.
    """
    parts = urlsplit(uri)
    if parts.scheme in ("", "file") and parts.path.startswith("/"):
        return "", unquote(parts.path) if parts.scheme else uri
    if parts.scheme == "gs" and parts.netloc:
        return unquote(f"{parts.netloc}{parts.path}"), ""
    raise PathError(f"{uri!r} names no place this cluster can reach.", _NO_PATH)


@functools.cache
def _arrow_gcs() -> fs.FileSystem:
    """One for all, as it keeps its connections."""
    # Google's own client asks an emulator as nobody too.
    nobody = "STORAGE_EMULATOR_HOST" in os.environ
    return fs.GcsFileSystem(anonymous=nobody, retry_time_limit=timedelta(seconds=ARROW_PATIENCE_S))


@functools.cache
def _tune_gcsfs() -> None:
    """Orbax's way to gs:// beside TensorStore. Left alone it waits 5 minutes for a server that says nothing."""
    import aiohttp
    import fsspec.config

    timeout = aiohttp.ClientTimeout(sock_connect=buckets.ANSWER_S, sock_read=buckets.ANSWER_S)
    # It would also go on believing in files that have been removed by others.
    ours = {"requests_timeout": timeout, "use_listings_cache": False}
    fsspec.config.conf["gcs"] = {**ours, **fsspec.config.conf.get("gcs", {})}
