"""Which checkpoints count: those with a commit record, written after all their data."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

from airflow_raytpu.runtime import files

RECORD = "raytpu-commit.json"
"""The commit record, in the checkpoint's own folder: it goes where the folder goes."""

_UNFINISHED = ".orbax-checkpoint-tmp"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed checkpoint.

    :param step: steps behind it; also its folder's name.
    :param request: remote name of the attempt that wrote it.
    :param at: when its save began, in seconds since the epoch.
    """

    step: int
    uri: str
    request: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    at: float = 0.0


def folder(root: str, step: int) -> str:
    """URI of the checkpoint of *step* under *root*."""
    return f"{root}/{step}"


def record(commit: Commit) -> None:
    """Write the record that makes *commit* count."""
    files.write_json(f"{commit.uri}/{RECORD}", asdict(commit))


def committed(root: str, lineage: Sequence[str]) -> list[Commit]:
    """The committed checkpoints under *root* that attempts of *lineage* wrote, the newest first; warns of torn ones."""
    whole, torn = _sort(root)
    for uri in torn:
        log.warning("checkpoint %s is torn (it has no valid commit record) and is passed over", uri)
    return [commit for commit in whole if commit.request in lineage]


def prune(root: str, keep: int, lineage: Sequence[str]) -> None:
    """Remove all but the newest *keep* checkpoints of *lineage*, and what torn ones are older than them.

    The record goes first, so that a half-removed checkpoint is a torn one.
    """
    whole, torn = _sort(root)
    kept = [commit for commit in whole if commit.request in lineage][:keep]
    for commit in whole:
        if commit not in kept:
            files.remove(f"{commit.uri}/{RECORD}")
            files.remove(commit.uri)
    for uri in torn:
        if kept and int(uri.rpartition("/")[2]) < kept[0].step:
            files.remove(uri)


def sweep(root: str) -> None:
    """Remove what saves that never ended left behind. Only where nobody is saving."""
    for name in files.children(root):
        if _UNFINISHED in name:
            files.remove(f"{root}/{quote(name)}")


def _sort(root: str) -> tuple[list[Commit], list[str]]:
    """The committed checkpoints, the newest first, and the URIs of the torn ones."""
    whole, torn = [], []
    for name in files.children(root):
        if name.isdigit():
            uri = folder(root, int(name))
            commit = _read(uri)
            if commit is None:
                torn.append(uri)
            else:
                whole.append(commit)
    return sorted(whole, key=lambda commit: commit.step, reverse=True), torn


def _read(uri: str) -> Commit | None:
    try:
        data: Any = files.read_json(f"{uri}/{RECORD}")
        # The record may have been moved along with its folder: where it lies now is what counts.
        return None if data is None else Commit(**{**data, "uri": uri})
    except (ValueError, TypeError):
        return None
