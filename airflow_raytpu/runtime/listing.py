"""The files that an address names, in order of their names: a file, a folder (with folders in it) or a glob."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote

from pyarrow import fs

from airflow_raytpu.runtime import files

_WILD = re.compile(r"[*?\[]")


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
    """Every file that *uri* names, but hidden ones (whose path has a part that begins with ``.`` or ``_``)."""
    root, pattern = _split(uri)
    filesystem, path = files.locate(root)
    whole = filesystem.get_file_info(path)
    if whole.type is fs.FileType.File:
        root, _, single = root.rpartition("/")
        return Listing(root, {unquote(single): whole.size}, chosen=True)
    found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
    below = {info.path[len(path) :].strip("/"): info.size for info in found if info.type is fs.FileType.File}
    meant = {name: below[name] for name in sorted(below) if _is_meant(name, pattern)}
    return Listing(root, meant, chosen=bool(pattern))


def opened(root: str, name: str) -> fs.NativeFile:
    """The file *name* below *root*, to be read anywhere in it."""
    filesystem, path = files.locate(root)
    file = f"{path.rstrip('/')}/{name}"
    stream = filesystem.open_input_file(file)
    # Where an object's first bytes do not come, Arrow only says that nothing is open, and tries anew when it is asked
    # next (26.0). As a stream it says why.
    if stream.closed:
        filesystem.open_input_stream(file).read(1)
    return stream


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
