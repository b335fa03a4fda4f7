"""Which checkpoints count: those with a commit record, written after all their data."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

from airflow_raytpu.model.errors import CheckpointError, LostError, RayTpuError
from airflow_raytpu.runtime import files

RECORD = "raytpu-commit.json"
"""The commit record, in the checkpoint's own folder: it goes where the folder goes."""

_UNFINISHED = ".orbax-checkpoint-tmp"

log = logging.getLogger(__name__)


class OvertakenError(LostError):
    """Another gang of the same run has committed the same step."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed checkpoint.

    :param step: steps behind it; also its folder's name.
    :param request: remote name of the attempt that wrote it.
    :param at: when its save began, in seconds since the epoch.
    :param files: its files by their path in the folder, in bytes; empty in a record that has none.
    :param data: where each dataset stood, see :meth:`airflow_raytpu.runtime.feed.Feed.position`; empty where none was
        gone through by number, and in older records.
    """

    step: int
    uri: str
    request: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    at: float = 0.0
    files: Mapping[str, int] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


def folder(root: str, step: int) -> str:
    """URI of the checkpoint of *step* under *root*."""
    return f"{root}/{step}"


def record(commit: Commit) -> None:
    """Write the record that makes *commit* count.

    :raises OvertakenError: in a bucket, there is one since the save began.
    """
    if not files.add_json(f"{commit.uri}/{RECORD}", asdict(commit)):
        raise OvertakenError(
            f"Others have committed {commit.uri} while it was saved here: two gangs of one run are at work.",
            "The next try goes on from what is committed. If this comes again, see who else writes there.",
        )


def committed(root: str, lineage: Sequence[str]) -> list[Commit]:
    """The committed checkpoints under *root* that attempts of *lineage* wrote, the newest first; warns of torn ones."""
    whole, torn = _sort(root)
    for uri in torn:
        log.warning("checkpoint %s is torn (it has no valid commit record) and is passed over", uri)
    return [commit for commit in whole if commit.request in lineage]


def every_commit(root: str) -> list[Commit]:
    """The committed checkpoints under *root*, whichever attempt wrote them, the newest first."""
    return _sort(root)[0]


def newest(root: str, lineage: Sequence[str]) -> Commit | None:
    """The newest checkpoint of *lineage* whose files are still what its record says; warns of those that are not."""
    for commit in committed(root, lineage):
        lacks = damage(commit)
        if not lacks:
            return commit
        log.warning("checkpoint %s is torn (%s) and is passed over", commit.uri, lacks)
    return None


def best_of(commits: Sequence[Commit], best: tuple[str, str] | None) -> Commit | None:
    """The best by ``(metric, "min" or "max")``, of equal ones the newest; ``None`` where none has the metric."""
    if best is None:
        return None
    metric, way = best
    sign = 1 if way == "min" else -1
    having = [commit for commit in commits if metric in commit.metrics]
    return min(having, key=lambda commit: (sign * commit.metrics[metric], -commit.step), default=None)


def inventory(uri: str) -> dict[str, int]:
    """Every file of the checkpoint at *uri* but its record, with its size in bytes.

    :raises CheckpointError: there is none.
    """
    found = {name: size for name, size in files.sizes(uri).items() if name != RECORD}
    if not found:
        raise CheckpointError(f"nothing was written to {uri}")
    return found


def damage(commit: Commit) -> str:
    """What a checkpoint lacks of what was committed, empty where it is whole."""
    found = files.sizes(commit.uri)
    for name, size in sorted(commit.files.items()):
        if name not in found:
            return f"{name} is missing"
        if found[name] != size:
            return f"{name} has {found[name]:,} of {size:,} bytes"
    return ""


def prune(root: str, keep: int, lineage: Sequence[str], best: tuple[str, str] | None = None) -> None:
    """Remove all but the best and the newest *keep* checkpoints of *lineage*, and what saves before the newest left.

    The record goes first, so that a half-removed checkpoint is a torn one.
    """
    whole, torn = _sort(root)
    mine = [commit for commit in whole if commit.request in lineage]
    kept = mine[:keep]
    if (finest := best_of(mine, best)) is not None:
        kept.append(finest)
    for commit in whole:
        if commit not in kept:
            files.remove(f"{commit.uri}/{RECORD}")
            files.remove(commit.uri)
    unfinished = [f"{root}/{quote(name)}" for name in files.children(root) if _UNFINISHED in name]
    for uri in [*torn, *unfinished]:
        step = uri.rpartition("/")[2].partition(_UNFINISHED)[0]
        if kept and step.isdigit() and int(step) < kept[0].step:
            files.remove(uri)


def sweep(root: str) -> None:
    """Remove what saves that never ended left behind. Only where nobody is saving."""
    for name in files.children(root):
        if _UNFINISHED in name:
            files.remove(f"{root}/{quote(name)}")


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Trouble of a bucket, which each of Orbax's clients tells in its own way, is no fault of the author's.

    :raises LostError: what was whole when it was chosen cannot be read.
    """
    try:
        yield
    except (RayTpuError, FileNotFoundError):
        raise
    except Exception as error:
        if not files.in_bucket(uri):
            raise
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        lever = "See whether Google Cloud Storage is in trouble, and whether the Ray pods may read there."
        raise LostError(f"The checkpoint {uri} could not be read: {why}", lever) from error


def _sort(root: str) -> tuple[list[Commit], list[str]]:
    """The committed checkpoints, the newest first, and the URIs of the torn ones."""
    whole, torn = [], []
    for name in files.children(root):
        if name.isdigit():
            uri = folder(root, int(name))
            commit = read(uri)
            if commit is None:
                torn.append(uri)
            else:
                whole.append(commit)
    return sorted(whole, key=lambda commit: commit.step, reverse=True), torn


def read(uri: str) -> Commit | None:
    """The record of the checkpoint at *uri*, ``None`` where there is no valid one."""
    try:
        data: Any = files.read_json(f"{uri}/{RECORD}")
        # The record may have been moved along with its folder: where it lies now is what counts.
        return None if data is None else Commit(**{**data, "uri": uri})
    except (ValueError, TypeError):
        return None
