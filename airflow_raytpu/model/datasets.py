"""``Dataset``: where a train loop's data lies, and what becomes of rows that fill no equal part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from airflow_raytpu.model.errors import RequestError

FORMATS = ("parquet", "arrow", "images", "tfrecord")
RAGGED = ("drop", "pad", "raise")


@dataclass(frozen=True, slots=True)
class Dataset:
    """The files of one dataset. A plain address means ``Dataset(address)``.

    :param uri: a file, a folder (with all below it) or a glob. Templated, and may be another task's output.
    :param ragged: what becomes of the rows that fill no equal part. ``"drop"`` leaves them out, and says how many;
        ``"pad"`` fills up with copies of the last row, and gives every batch a column ``row_mask``, false for a copy;
        ``"raise"`` refuses, before a slice is taken.
    :param format: ``"parquet"``, ``"arrow"`` (IPC and Feather files), ``"images"`` or ``"tfrecord"``; left out, the
        names of the files say it.
    :param columns: the columns that are read; all where left out, of images all but their ``path``.
    :param image_size: height and width to which images are resized; left out, all must be of one size.
    """

    uri: Any
    ragged: str = "drop"
    format: str | None = None
    columns: tuple[str, ...] | None = None
    image_size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.ragged not in RAGGED:
            raise RequestError(f"Dataset(ragged={self.ragged!r}) is unknown.", f"Use one of {', '.join(RAGGED)}.")
        if self.format is not None and self.format not in FORMATS:
            raise RequestError(f"Dataset(format={self.format!r}) is unknown.", f"Use one of {', '.join(FORMATS)}.")
        if self.columns is not None:
            object.__setattr__(self, "columns", _names(self.columns))
        if self.image_size is not None:
            object.__setattr__(self, "image_size", _height_and_width(self.image_size))

    def to_dict(self) -> dict[str, Any]:
        """The address, and what differs from the defaults."""
        stated = {name: getattr(self, name) for name, default in _DEFAULTS.items() if getattr(self, name) != default}
        return {
            "uri": self.uri,
            **{name: list(value) if isinstance(value, tuple) else value for name, value in stated.items()},
        }

    @classmethod
    def of(cls, value: Any) -> Dataset:
        """*value* as authors and requests write it: an address, or a mapping of these fields.

        :raises RequestError: the mapping has other keys, or lacks the address.
        """
        if isinstance(value, Dataset):
            return value
        if not isinstance(value, Mapping):
            return cls(value)
        if "uri" not in value or not set(value) <= {"uri", *_DEFAULTS}:
            raise RequestError(
                f"A dataset has the keys {sorted(map(str, value))}.",
                f"uri is needed; known are {', '.join(_DEFAULTS)} besides.",
            )
        return cls(**value)


_DEFAULTS = {each.name: each.default for each in fields(Dataset) if each.name != "uri"}


def _names(columns: Any) -> tuple[str, ...]:
    listed = tuple(columns) if isinstance(columns, list | tuple) else ()
    if not listed or not all(isinstance(each, str) for each in listed):
        raise RequestError(
            f"Dataset(columns={columns!r}) is no list of names.", 'Give columns=["x", "y"], or leave it out.'
        )
    return listed


def _height_and_width(size: Any) -> tuple[int, int]:
    pair = tuple(size) if isinstance(size, list | tuple) else ()
    if len(pair) != 2 or not all(isinstance(each, int) and each > 0 for each in pair):
        raise RequestError(f"Dataset(image_size={size!r}) is no size.", "Give image_size=(height, width), in pixels.")
    return pair
