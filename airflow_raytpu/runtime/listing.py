"""The files that an address names, in order of their names: a file, a folder (with folders in it) or a glob.

Whatever their format, what storage does is told here from what a file is: trouble may pass, a file must be replaced.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from airflow_raytpu.model.errors import PathError, RayTpuError
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.buckets import GRANT_IT, LATER, RefusedError, SilentError

_WILD = re.compile(r"[*?\[]")
_GOOGLE = re.compile(
    r"google::cloud::Status\((\w+): (?:.*?with a last message of )?(.*?)(?: error_info=|\)\. Detail|\)?$)", re.DOTALL
)
"""Google's word for it and what it said, in the middle of what its C++ client says."""

_REFUSED = {"PERMISSION_DENIED", "UNAUTHENTICATED"}
_NOT_THERE = {"NOT_FOUND", "OUT_OF_RANGE", "INVALID_ARGUMENT"}


@dataclass(frozen=True, slots=True)
class Kind:
    """What is expected at an address.

    :param name: as in "cannot be read as ...".
    :param lever: what to do where it is not there, or is something else; :param error: and what that is.
    """

    name: str
    lever: str
    error: type[PathError] = PathError

    def missed(self, uri: str, why: object) -> PathError:
        """It is not what is at *uri*."""
        return self.error(f"{uri} cannot be read as {self.name}: {why}", self.lever)


_PLACE = Kind("a file, a folder or a glob", "See its spelling.")


@dataclass(frozen=True, slots=True)
class Listing:
    """What there is.

    :param root: URI that the names are relative to.
    :param sizes: bytes of each file by its name, in order of the names.
    :param chosen: the author named each of them, by a glob or one by one: how they end says nothing.
    """

    root: str
    sizes: Mapping[str, int]
    chosen: bool


def listed(uri: str) -> Listing:
    """Every file that *uri* names, but hidden ones (whose path has a part that begins with ``.`` or ``_``).

    :raises PathError: it names no place, or one that may not be read.
    :raises SilentError: its bucket did not answer in time.
    """
    root, pattern = _split(uri)
    with _judged(uri, _PLACE):
        filesystem, path = files.locate(root)
        whole = filesystem.get_file_info(path)
        if whole.type is fs.FileType.File:
            root, _, single = root.rpartition("/")
            return Listing(root, {unquote(single): whole.size}, chosen=True)
        found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
    below = {info.path[len(path) :].strip("/"): info.size for info in found if info.type is fs.FileType.File}
    meant = {name: below[name] for name in sorted(below) if _is_meant(name, pattern)}
    return Listing(root, meant, chosen=bool(pattern))


@contextmanager
def opened(root: str, name: str, kind: Kind) -> Iterator[pa.NativeFile]:
    """The file *name* below *root*, to be read anywhere in it. What Arrow raises meanwhile is ours too.

    :raises PathError: it is not there, or not of its *kind*, or may not be read.
    :raises SilentError: its bucket did not answer in time.
    """
    uri = f"{root}/{name}"
    with _judged(uri, kind):
        filesystem, path = files.locate(root)
        file = f"{path.rstrip('/')}/{name}"
        with filesystem.open_input_file(file) as stream:
            # Where an object's first bytes do not come, Arrow only says that nothing is open, and tries anew when it
            # is asked next (26.0). As a stream it says why, unless they come just then.
            if stream.closed:
                filesystem.open_input_stream(file).read(1)
                if stream.closed:
                    raise _silent(uri, "its first bytes do not come")
            yield stream


@contextmanager
def _judged(uri: str, kind: Kind) -> Iterator[None]:
    """Arrow's errors as ours."""
    try:
        yield
    except (RayTpuError, MemoryError):
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _verdict(uri, kind, error) from error


def _verdict(uri: str, kind: Kind, error: Exception) -> RayTpuError:
    google = _GOOGLE.search(str(error))
    if google is None:
        # What the disk refuses has a number, and what a file lacks has none.
        numbered = isinstance(error, OSError) and error.errno is not None
        if numbered and not isinstance(error, FileNotFoundError):
            return PathError(f"{uri} could not be read: {error}", "See its permissions, and the disk.")
        return kind.missed(uri, error)
    # Arrow's own class for it is lost where a decoder says it again.
    word, said = google.groups()
    if word in _NOT_THERE:
        return kind.missed(uri, said)
    if word in _REFUSED:
        return RefusedError(f"{uri} could not be read: {said}", GRANT_IT)
    return _silent(uri, said)


def _silent(uri: str, why: str) -> SilentError:
    return SilentError(f"{uri} could not be read: {why}", LATER)


def _split(uri: str) -> tuple[str, str]:
    """A URI's folder and, where it holds wildcards, the pattern below that folder."""
    uri = uri.rstrip("/")
    match = _WILD.search(uri)
    if match is None:
        return uri, ""
    root = uri[: match.start()].rpartition("/")[0]
    return root, unquote(uri[len(root) + 1 :])


def _is_meant(name: str, pattern: str) -> bool:
    hidden = any(part.startswith((".", "_")) for part in PurePosixPath(name).parts)
    return not hidden and (not pattern or fnmatch.fnmatchcase(name, pattern))
