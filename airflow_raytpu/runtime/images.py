"""Images as rows: one a file, its pixels as ``image``, the folder that holds it as ``label``."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.runtime.listing import Kind, opened

_BLOCK_ROWS = 16_384
_THREADS = 16
_CHANNELS = 3
_KIND = Kind("an image", "Replace it, or move it elsewhere.")


@dataclass(frozen=True, slots=True)
class Images:
    """Some images as if they were one file; see :class:`airflow_raytpu.runtime.spans.File`.

    :param labels: numbers of the folders that hold them, ``None`` where not each has one.
    :param shape: height and width of them all, the first one's where they are not *resized*.
    """

    root: str
    names: tuple[str, ...]
    labels: tuple[int, ...] | None
    shape: tuple[int, int]
    resized: bool

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def groups(self) -> Sequence[int]:
        return [1] * len(self.names)

    @property
    def blocks(self) -> Sequence[int]:
        return [len(self.names)]

    @property
    def rows(self) -> int:
        return len(self.names)

    @property
    def size(self) -> int:
        height, width = self.shape
        return self.rows * height * width * _CHANNELS

    @property
    def schema(self) -> pa.Schema:
        label = {} if self.labels is None else {"label": pa.int32()}
        return pa.schema({"image": _pixels(self.shape), **label, "path": pa.string()})

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.Table:
        """See :class:`airflow_raytpu.runtime.spans.File`; ``path`` is read only where it is named."""
        names = [each for each in self.schema.names if each != "path"] if columns is None else list(columns)
        made: dict[str, Any] = {}
        for name in names:
            if name == "image":
                made[name] = self._images(start, stop)
            elif name == "label" and self.labels is not None:
                made[name] = pa.array(self.labels[start:stop], pa.int32())
            else:
                made[name] = pa.array([f"{self.root}/{each}" for each in self.names[start:stop]])
        return pa.table(made)

    def _images(self, start: int, stop: int) -> pa.Array:
        names = self.names[start:stop]
        if len(names) == 1:
            arrays = [self._decode(names[0])]
        else:
            with ThreadPoolExecutor(_THREADS) as pool:
                arrays = list(pool.map(self._decode, names))
        array = pa.array(np.stack(arrays).reshape(-1))
        for length in (_CHANNELS, self.shape[1], self.shape[0]):
            array = pa.FixedSizeListArray.from_arrays(array, length)
        return array

    def _decode(self, name: str) -> np.ndarray:
        """:raises PathError: it is no image, or of another size."""
        height, width = self.shape
        with _image(self.root, name) as found:
            image = found.convert("RGB")
            if self.resized:
                image = image.resize((width, height), _pillow().Resampling.BILINEAR)
            pixels = np.asarray(image)
        if pixels.shape[:2] != self.shape:
            raise PathError(
                f"{self.root}/{name} is {pixels.shape[0]} pixels high and {pixels.shape[1]} wide; the first image of "
                f"the dataset is {height} and {width}.",
                "Have all resized: Dataset(..., image_size=(height, width)).",
            )
        return pixels


def gather(root: str, names: Sequence[str], size: tuple[int, int] | None) -> tuple[list[Images], list[str]]:
    """The images *names*, and the names that their labels stand for, none where not each lies in a folder.

    :param size: height and width to which they are resized; ``None`` takes those of the first.
    :raises PathError: the first is no image.
    :raises SilentError: its bucket did not answer in time.
    """
    folders = [PurePosixPath(name).parent.name for name in names]
    classes = sorted(set(folders)) if all(folders) else []
    numbers = {name: number for number, name in enumerate(classes)}
    shape = size or _shape_of(root, names[0])
    made = []
    for first in range(0, len(names), _BLOCK_ROWS):
        some = slice(first, first + _BLOCK_ROWS)
        labels = tuple(numbers[folder] for folder in folders[some]) if classes else None
        made.append(Images(root, tuple(names[some]), labels, shape, resized=size is not None))
    return made, classes


def _shape_of(root: str, name: str) -> tuple[int, int]:
    with _image(root, name) as image:
        return image.height, image.width


@contextmanager
def _image(root: str, name: str) -> Iterator[Any]:
    """The image as Pillow opens it; much of what is wrong with it shows only when it is used.

    :raises PathError: it is none.
    :raises SilentError: its bucket did not answer in time.
    """
    pillow = _pillow()
    with opened(root, name, _KIND) as file:
        data = file.read()
    try:
        with pillow.open(io.BytesIO(data)) as image:
            yield image
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise _KIND.missed(f"{root}/{name}", error) from error


def _pixels(shape: tuple[int, int]) -> pa.DataType:
    kind = pa.uint8()
    for length in itertools.chain([_CHANNELS], reversed(shape)):
        kind = pa.list_(kind, length)
    return kind


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise PathError(
            "Images are read by Pillow, which is not installed here.", "Add pillow to the image of the Ray cluster."
        ) from error
    return Image
