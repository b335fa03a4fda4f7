"""Storage addresses: ``file:///absolute/path`` and ``gs://bucket/path``, as text. Nothing is opened here.

Addresses are percent-encoded, as pyarrow reads them on the cluster's side: :func:`normalise` is the only way in.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from airflow_raytpu.model.errors import PathError

_VALID = "Use gs://bucket/path, or file:///absolute/path (a plain absolute path means the same)."
_UNQUOTED = "/@+=:,~*"


def normalise(uri: str) -> str:
    """*uri* in the one form used everywhere; a plain absolute path becomes ``file://``. Doing it twice changes nothing.

    :raises PathError: neither ``gs://`` nor an absolute path on disk.
    """
    scheme, path = split(uri)
    return (
        f"{scheme}:///{quote(path[1:], safe=_UNQUOTED)}" if scheme == "file" else f"gs://{quote(path, safe=_UNQUOTED)}"
    )


def split(uri: str) -> tuple[str, str]:
    """Scheme and decoded path."""
    if not isinstance(uri, str):
        raise PathError(f"{uri!r} is a {type(uri).__name__}, not a storage address.", _VALID)
    if uri.startswith("/"):
        return "file", uri
    scheme, separator, rest = uri.partition("://")
    if separator and scheme == "file":
        path = unquote(rest.removeprefix("localhost"))
        if path.startswith("/"):
            return "file", path
        raise PathError(f"{uri!r} is not absolute.", _VALID)
    if separator and scheme == "gs":
        path = unquote(rest)
        if path.split("/")[0]:
            return "gs", path
        raise PathError(f"{uri!r} names no bucket.", _VALID)
    raise PathError(f"{uri!r} is not a storage address.", _VALID)
