"""Whole objects by URI: ``file:///absolute/path`` and ``gs://bucket/path``. Synchronous; for operators and backends.

What an address is, and its one form, is in :mod:`airflow_raytpu.model.addresses`.
"""

from __future__ import annotations

import json
from typing import Any, Protocol
from urllib.parse import quote

from airflow_raytpu.model.addresses import normalise, split
from airflow_raytpu.model.errors import PathError

__all__ = [
    "check_readable",
    "check_writable",
    "exists",
    "list_prefix",
    "normalise",
    "read_bytes",
    "read_json",
    "read_record",
    "size",
    "write_bytes",
    "write_json",
]


class Store(Protocol):
    """One kind of storage. *path* is decoded: an absolute path, or ``bucket/name``."""

    def read(self, path: str) -> bytes | None: ...
    def write(self, path: str, data: bytes, *, if_absent: bool) -> bool: ...
    def size(self, path: str) -> int | None: ...
    def names(self, path: str) -> list[str]: ...
    def check_writable(self, path: str) -> None: ...
    def check_readable(self, path: str) -> None: ...


def read_bytes(uri: str) -> bytes | None:
    """The object's content, ``None`` where there is none.

    :raises BackendUnreachable: storage gave no answer.
    """
    store, path = _open(uri)
    return store.read(path)


def read_json(uri: str) -> Any:
    """The object's content as JSON, ``None`` where there is none.

    :raises PathError: it holds something else.
    """
    data = read_bytes(uri)
    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError as error:
        raise PathError(
            f"{uri} does not hold JSON: {error}.", "Nothing but airflow_raytpu writes there; remove it."
        ) from error


def read_record(uri: str) -> dict[str, Any] | None:
    """The object's content as a JSON object, ``None`` where there is none.

    :raises PathError: it holds something else: it was cut off, or somebody else wrote it.
    """
    found = read_json(uri)
    if found is not None and not isinstance(found, dict):
        raise PathError(
            f"{uri} holds {type(found).__name__} where a JSON object is due.",
            "Nothing but airflow_raytpu writes there; remove it.",
        )
    return found


def write_bytes(uri: str, data: bytes, *, if_absent: bool = False) -> bool:
    """Write the whole object at once: a reader sees all of it or none.

    :param if_absent: leave an existing object alone.
    :returns: whether it was written, by this call; an answer that was lost on the way does not change that.
    :raises BackendUnreachable: it could not be written.
    """
    store, path = _open(uri)
    return store.write(path, data, if_absent=if_absent)


def write_json(uri: str, value: Any) -> None:
    """Write *value* as JSON, as :func:`write_bytes` does."""
    write_bytes(uri, json.dumps(value, allow_nan=False).encode())


def size(uri: str) -> int | None:
    """Bytes of the object, ``None`` where there is none."""
    store, path = _open(uri)
    return store.size(path)


def exists(uri: str) -> bool:
    """Whether there is such an object (not a folder)."""
    return size(uri) is not None


def list_prefix(uri: str) -> list[str]:
    """URIs of every object under the folder *uri*, sorted."""
    scheme, path = split(uri)
    store, _ = _open(uri)
    prefix = "gs://" if scheme == "gs" else "file://"
    return sorted(normalise(prefix + quote(name)) for name in store.names(path))


def check_writable(uri: str) -> None:
    """Prove that objects can be written under the folder *uri*, by writing one.

    :raises PathError: with the system's own reason.
    """
    store, path = _open(uri)
    store.check_writable(path)


def check_readable(uri: str) -> None:
    """Prove that the file, the non-empty folder or the glob *uri* is there and readable.

    :raises PathError: with the nearest place that exists.
    """
    store, path = _open(uri)
    store.check_readable(path)


def _open(uri: str) -> tuple[Store, str]:
    scheme, path = split(uri)
    if scheme == "gs":
        from airflow_raytpu.storage import buckets

        return buckets.Buckets(), path
    from airflow_raytpu.storage import files

    return files.Files(), path
