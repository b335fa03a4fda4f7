"""The texts: what Python's standard library says of itself, which every Python brings along. One token is one byte."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

DOCSTRINGS = 1_000_000
"""So many bytes of docstrings are enough."""

HELD_OUT = 64
"""Windows of each text that no training sees."""

_LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data"}


def write_windows(root: str, length: int = 128, files: int = 4) -> dict[str, str]:
    """Write both texts below the URI *root* as Parquet, cut into windows of *length* tokens and the one that follows.

    The one column is ``tokens``. ``docstrings`` are for the first training, the language reference's ``topics`` for
    the second; each has its windows that are held out.

    :returns: URIs of ``docstrings``, ``docstrings_held_out``, ``topics``, ``topics_held_out``, and of a file
        ``killed`` that is not there.
    """
    import numpy as np
    from pyarrow.fs import FileSystem

    filesystem, folder = FileSystem.from_uri(root)
    for name, text in (("docstrings", docstrings()), ("topics", topics())):
        tokens = np.frombuffer(text.encode(), np.uint8)
        windows = tokens[: len(tokens) // (length + 1) * (length + 1)].reshape(-1, length + 1)
        windows = windows[np.random.default_rng(0).permutation(len(windows))]
        _write(windows[HELD_OUT:], f"{folder}/{name}", files, filesystem)
        _write(windows[:HELD_OUT], f"{folder}/{name}_held_out", 1, filesystem)
    names = ("docstrings", "docstrings_held_out", "topics", "topics_held_out", "killed")
    return {name: f"{root}/{name}" for name in names}


def topics() -> str:
    """The language reference, as ``help()`` shows it."""
    from pydoc_data.topics import topics as found

    return "\n\n".join(found[name] for name in sorted(found))


def docstrings() -> str:
    """What modules, classes and functions of the standard library say of themselves: about 1 MB, each text once."""
    seen: dict[str, None] = {}
    size = 0
    for text in _docstrings():
        if text not in seen:
            seen[text] = None
            size += len(text)
        if size >= DOCSTRINGS:
            break
    return "\n\n".join(seen)


def _docstrings() -> Iterator[str]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if _LEFT_OUT.intersection(path.relative_to(root).parts):
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""


def _write(windows, folder: str, files: int, filesystem) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    filesystem.create_dir(folder, recursive=True)
    for number, part in enumerate(np.array_split(windows, files)):
        tokens = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), part.shape[1])
        pq.write_table(pa.table({"tokens": tokens}), f"{folder}/{number:02d}.parquet", filesystem=filesystem)
