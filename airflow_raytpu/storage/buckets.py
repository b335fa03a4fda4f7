"""Objects in Google Cloud Storage. Called from :mod:`airflow_raytpu.storage.objects`.

Every write replaces a whole object, so each call may be repeated, and the client's own retry covers short trouble. A
write that was to find nothing there may meet itself when it is repeated; it knows itself by a mark on the object.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Iterator
from typing import Any

from airflow_raytpu.model.errors import BackendUnreachable, PathError

_PROBE = ".write-check"
_WRITE = "airflow-raytpu-write"
"""Key of an object's metadata: which write made it, where there was to be none before."""


class Buckets:
    """See :class:`airflow_raytpu.storage.objects.Store`. *path* is ``bucket/name``."""

    def read(self, path: str) -> bytes | None:
        from google.api_core.exceptions import NotFound

        with _errors(path, "read"):
            try:
                data: bytes = _blob(path).download_as_bytes()
            except NotFound:
                return None
            return data

    def write(self, path: str, data: bytes, *, if_absent: bool) -> bool:
        from google.api_core.exceptions import PreconditionFailed
        from google.cloud.storage.retry import DEFAULT_RETRY

        blob, mark = _blob(path), uuid.uuid4().hex
        if if_absent:
            blob.metadata = {_WRITE: mark}
        with _errors(path, "written"):
            try:
                # Generation 0 stands for "there is none".
                blob.upload_from_string(
                    data,
                    content_type="application/octet-stream",
                    if_generation_match=0 if if_absent else None,
                    retry=DEFAULT_RETRY,
                )
            except PreconditionFailed:
                # What is there may be this very write, whose answer was lost before the client asked again.
                return _mark_on(path) == mark
        return True

    def size(self, path: str) -> int | None:
        bucket, name = _parts(path)
        with _errors(path, "read"):
            blob = _client().bucket(bucket).get_blob(name)
        return None if blob is None else int(blob.size)

    def names(self, path: str) -> list[str]:
        bucket, name = _parts(path)
        prefix = name.rstrip("/") + "/" if name else ""
        with _errors(path, "listed"):
            return [f"{bucket}/{blob.name}" for blob in _client().list_blobs(bucket, prefix=prefix)]

    def check_writable(self, path: str) -> None:
        # The probe stays: removing it would ask for a right that nothing else here needs.
        try:
            self.write(f"{path.rstrip('/')}/{_PROBE}", b"", if_absent=False)
        except BackendUnreachable as error:
            raise PathError(error.cause, error.lever) from error

    def check_readable(self, path: str) -> None:
        bucket, name = _parts(path)
        name = name.rstrip("/")
        with _errors(path, "listed"):
            if any(mark in name for mark in "*?["):
                found = any(_client().list_blobs(bucket, match_glob=name, max_results=1))
            else:
                blobs = _client().list_blobs(bucket, prefix=name, max_results=100)
                found = any(blob.name == name or blob.name.startswith(f"{name}/") or not name for blob in blobs)
        if not found:
            raise PathError(f"gs://{path} does not exist: no object has that name or prefix.", "See its spelling.")


@functools.cache
def _client() -> Any:
    from google.cloud import storage

    # Objects belong to buckets; the project that the client insists on is never sent.
    return storage.Client(project="-")


def _blob(path: str) -> Any:
    bucket, name = _parts(path)
    return _client().bucket(bucket).blob(name)


def _mark_on(path: str) -> str | None:
    """Which write made the object, where it says so."""
    bucket, name = _parts(path)
    blob = _client().bucket(bucket).get_blob(name)
    return None if blob is None else (blob.metadata or {}).get(_WRITE)


def _parts(path: str) -> tuple[str, str]:
    bucket, _, name = path.partition("/")
    return bucket, name


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
        raise PathError(f"{what}: there is no bucket {_parts(path)[0]}.", "Create it, or see its spelling.") from error
    except (Forbidden, Unauthorized) as error:
        raise PathError(
            f"{what}: {error.message}", "Grant the worker's service account Storage Object User."
        ) from error
    except GoogleAuthError as error:
        raise PathError(
            f"{what}: {error}", "Give the worker Google credentials, for example Workload Identity."
        ) from error
    except (GoogleAPIError, RequestException) as error:
        raise BackendUnreachable(f"{what}: {error}", "Google Cloud Storage may be in trouble; try again.") from error
