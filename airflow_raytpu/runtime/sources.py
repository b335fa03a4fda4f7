"""What a stated dataset is made of: its files, with their rows counted, before any row is read."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath

from airflow_raytpu.model.datasets import Dataset
from airflow_raytpu.model.errors import PathError, RequestError
from airflow_raytpu.runtime import arrowfiles, images, parquet, tfrecords
from airflow_raytpu.runtime.listing import Listing, listed
from airflow_raytpu.runtime.spans import File, Span

MASK = "row_mask"
"""Column that is true for a row, and false for a copy that fills up."""

_THREADS = 16
_SHOWN = 10
_ENDINGS = {
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather", ".ipc"),
    "images": (".png", ".jpg", ".jpeg", ".webp", ".bmp"),
    "tfrecord": (".tfrecord", ".tfrecords"),
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """One dataset as it lies in storage. Survives pickling.

    :param columns: what is read of it.
    :param fingerprint: of the files' names and bytes: other files have another one.
    """

    files: tuple[File, ...]
    columns: tuple[str, ...]
    ragged: str
    fingerprint: str

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def spans(self) -> list[Span]:
        """All rows."""
        return [Span(file, 0, file.rows) for file in self.files]


def scan(dataset: Dataset) -> Source:
    """What lies at the dataset's address.

    :raises PathError: nothing does, or something that cannot be read, or files that do not fit one another.
    :raises SilentError: its bucket did not answer in time.
    """
    found = listed(dataset.uri)
    kind, names = _choose(dataset, found)
    if left := len(found.sizes) - len(names):
        other = next(name for name in found.sizes if name not in set(names))
        log.warning("%d of %d files at %s are no %s and are left out, such as %s", left, len(found.sizes),
                    dataset.uri, kind, other)  # fmt: skip
    files, columns = _open(dataset, kind, found, names)
    bytes_of = [(name, found.sizes[name]) for name in names]
    mark = hashlib.sha256(json.dumps([kind, bytes_of]).encode()).hexdigest()[:16]
    return Source(tuple(file for file in files if file.rows), columns, dataset.ragged, mark)


def _choose(dataset: Dataset, found: Listing) -> tuple[str, list[str]]:
    """The format, and the files that are of it."""
    uri, kinds = dataset.uri, {name: _format_of(name) for name in found.sizes}
    if not kinds:
        raise PathError(f"There is no file at {uri}.", "Give a folder, a file or a glob; see its spelling.")
    known = Counter(kind for kind in kinds.values() if kind)
    if dataset.format is None and len(known) > 1:
        counts = ", ".join(f"{count} of {kind}" for kind, count in sorted(known.items()))
        raise PathError(f"{uri} holds files of several formats: {counts}.", "Say which one: Dataset(..., format=...).")
    if dataset.format is None and not known and not found.chosen:
        raise PathError(
            f"No file at {uri} has a format that is known by its name, such as {next(iter(kinds))}.",
            "Say which one it is: Dataset(..., format=...).",
        )
    kind = dataset.format or next(iter(known), "parquet")
    if found.chosen:
        return kind, list(kinds)
    return kind, [name for name in kinds if kinds[name] == (kind if known[kind] else None)]


def _format_of(name: str) -> str | None:
    """What the file's name says, ``None`` where it says nothing. TFRecord files often end in their number."""
    base = PurePosixPath(name).name.lower()
    return next((kind for kind, endings in _ENDINGS.items() if base.endswith(endings)), None) or (
        "tfrecord" if ".tfrecord-" in base else None
    )


def _open(dataset: Dataset, kind: str, found: Listing, names: Sequence[str]) -> tuple[list[File], tuple[str, ...]]:
    """The files, and the columns that are read of them."""
    if not names:
        raise PathError(f"No file at {dataset.uri} is {kind}.", "Say another format, or give another address.")
    root, files = found.root, list[File]()
    if kind == "images":
        some, classes = images.gather(root, names, dataset.image_size)
        files += some
        if classes:
            shown = ", ".join(classes[:_SHOWN]) + (", ..." if len(classes) > _SHOWN else "")
            log.info("labels of %s: 0 to %d for %s", dataset.uri, len(classes) - 1, shown)
    elif dataset.image_size is not None:
        raise RequestError(f"image_size is for images, and {dataset.uri} is {kind}.", "Leave image_size out.")
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            files += pool.map(lambda name: _file(kind, root, name, found.sizes[name]), names)
    full = [file for file in files if file.rows] or files
    every = [name for name in full[0].schema.names if kind != "images" or name != "path"]
    columns = dataset.columns or tuple(every)
    _check_columns(full, columns, every=dataset.columns is None and kind != "images")
    if dataset.ragged == "pad" and MASK in columns:
        raise PathError(
            f"{dataset.uri} has a column {MASK!r}, which is what ragged='pad' adds.", "Rename it, or leave it out."
        )
    return files, columns


def _file(kind: str, root: str, name: str, size: int) -> File:
    if kind == "arrow":
        return arrowfiles.footer(root, name, size)
    return tfrecords.index(root, name) if kind == "tfrecord" else parquet.footer(root, name)


def _check_columns(files: Sequence[File], columns: Sequence[str], *, every: bool) -> None:
    """:raises PathError: a file lacks one of *columns*, has it of another type, or (*every*) has more of them."""
    first = files[0].schema
    for file in files:
        for name in columns:
            kind = file.schema.field(name).type if name in file.schema.names else None
            if kind is None or kind != first.field(name).type:
                has = "no" if kind is None else f"{kind} in the"
                raise PathError(
                    f"{file.root}/{file.name} has {has} column {name!r}"
                    + (f", and {files[0].name} has {first.field(name).type}." if name in first.names else "."),
                    f"It has {', '.join(file.schema.names)}. Write all files alike, or name the columns to read.",
                )
        if every and (more := set(file.schema.names) - set(columns)):
            raise PathError(
                f"{file.root}/{file.name} has a column {min(more)!r} that {files[0].name} has not.",
                "Write all files alike, or name the columns to read: Dataset(..., columns=[...]).",
            )
