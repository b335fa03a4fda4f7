"""Objects in Google Cloud Storage, as the cluster sees them. Called from :mod:`airflow_raytpu.runtime.files`.

pyarrow, which reads the inputs, waits two minutes for a server that says nothing, sees no folder but by a marker, and
cannot remove one without (26.0): what we write ourselves goes through Google's own client. Every call may be repeated.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airflow_raytpu.model.errors import BackendUnreachable, PathError

PATIENCE_S = 120.0
"""For so long storage in trouble is asked again, with growing pauses. An outage longer than this fails the call."""

ANSWER_S = 30.0
"""A server that says nothing for so long is asked again."""

GRANT_IT = "Grant the service account of the Ray pods Storage Object User on the bucket."
LATER = "Google Cloud Storage may be in trouble; try again."

_DELETE_THREADS = 8
_IF_NONE = {"if_generation_match": 0}
"""Generation 0 stands for "there is none"."""

log = logging.getLogger(__name__)


class RefusedError(PathError, OSError):
    """Storage will not do it, however often it is asked."""


class SilentError(BackendUnreachable, OSError):
    """Storage did not do it in time; later it may."""


def read(path: str) -> bytes | None:
    """The object's content, ``None`` where there is none. *path* is ``bucket/name``, here and below."""
    from google.api_core.exceptions import NotFound

    with _errors(path, "read"):
        try:
            data: bytes = _blob(path).download_as_bytes(timeout=ANSWER_S, retry=_retry())
        except NotFound:
            return None
        return data


def write(path: str, data: bytes) -> None:
    """Write the whole object: readers see the old one or the new, never a part."""
    with _errors(path, "written"):
        _put(_blob(path), data)


def add(path: str, data: bytes) -> bool:
    """Write the object where there is none; whether there was none. Of two that do so at a time one is told yes."""
    from google.api_core.exceptions import PreconditionFailed

    with _errors(path, "written"):
        try:
            _put(_blob(path), data, **_IF_NONE)
        except PreconditionFailed:
            # It may be this very write, whose answer was lost before the client asked again.
            return read(path) == data
    return True


def mark(path: str) -> None:
    """Leave an empty object that stands for the folder *path*, by which Arrow, and so Ray, knows that it is one.

    Where Arrow finds no folder above the one it makes, it looks for the bucket, which Storage Object User may not.

    :raises RefusedError: nothing may be written there.
    """
    from google.api_core.exceptions import PreconditionFailed

    with _errors(path, "written"), contextlib.suppress(PreconditionFailed):
        blob = _blob(f"{path.rstrip('/')}/")
        blob.metadata = {"arrow/gcsfs": "directory"}
        _put(blob, b"", **_IF_NONE)


def remove(path: str) -> None:
    """Remove the object and all objects below; nothing there is no error."""
    with _errors(path, "removed"):
        found = [path, *(f"{_parts(path)[0]}/{blob.name}" for blob in _below(path))]
        with ThreadPoolExecutor(_DELETE_THREADS) as pool:
            list(pool.map(_delete, found))


def children(path: str) -> list[str]:
    """Names right below *path*, of objects and of what has objects below."""
    top = _prefix(path)
    with _errors(path, "listed"):
        listing = _below(path, delimiter="/")
        # In this order: the folders are known once all pages were seen.
        names = [blob.name for blob in listing] + list(listing.prefixes)
    return sorted(name.removeprefix(top).rstrip("/") for name in names if name != top)


def sizes(path: str) -> dict[str, int]:
    """Bytes of every object below *path*, by its name from there; without the markers of folders."""
    top = _prefix(path)
    with _errors(path, "listed"):
        return {blob.name.removeprefix(top): blob.size for blob in _below(path) if not blob.name.endswith("/")}


@functools.cache
def _client() -> Any:
    from google.cloud import storage

    # Objects belong to buckets; the project that the client insists on is never sent.
    return storage.Client(project="-")


def _retry() -> Any:
    from google.api_core.retry import Retry
    from google.cloud.storage.retry import DEFAULT_RETRY

    # What may pass is what Google says may pass; the rest is said in the log.
    return Retry(predicate=DEFAULT_RETRY._predicate, timeout=PATIENCE_S, on_error=_tell)  # noqa: SLF001 - no public name


def _tell(error: Exception) -> None:
    log.info("Storage is in trouble and will be asked again: %s", error)


def _blob(path: str) -> Any:
    bucket, name = _parts(path)
    return _client().bucket(bucket).blob(name)


def _put(blob: Any, data: bytes, **conditions: Any) -> None:
    kind = "application/octet-stream"
    blob.upload_from_string(data, content_type=kind, timeout=ANSWER_S, retry=_retry(), **conditions)


def _below(path: str, **how: Any) -> Any:
    return _client().list_blobs(_parts(path)[0], prefix=_prefix(path), timeout=ANSWER_S, retry=_retry(), **how)


def _delete(path: str) -> None:
    from google.api_core.exceptions import NotFound

    # What a lost answer has already removed is gone too.
    with contextlib.suppress(NotFound):
        _blob(path).delete(timeout=ANSWER_S, retry=_retry())


def _parts(path: str) -> tuple[str, str]:
    bucket, _, name = path.partition("/")
    return bucket, name


def _prefix(path: str) -> str:
    name = _parts(path)[1].strip("/")
    return f"{name}/" if name else ""


@contextlib.contextmanager
def _errors(path: str, done: str) -> Iterator[None]:
    """Google's errors as ours."""
    from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, Unauthorized
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    what = f"gs://{path} could not be {done}"
    try:
        yield
    except NotFound as error:
        cause = f"{what}: there is no bucket {_parts(path)[0]}."
        raise RefusedError(cause, "Create it, or see its spelling.") from error
    except (Forbidden, Unauthorized) as error:
        raise RefusedError(f"{what}: {error.message}", GRANT_IT) from error
    except GoogleAuthError as error:
        lever = "Give the Ray pods Google credentials, for example Workload Identity."
        raise RefusedError(f"{what}: {error}", lever) from error
    except (GoogleAPIError, RequestException) as error:
        asked = f"{what}, though asked for up to {PATIENCE_S:.0f} s: {error}"
        raise SilentError(asked, LATER) from error
