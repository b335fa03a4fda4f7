"""The leaves of a state and of a checkpoint, to prove that one fits the other before anything is read.

Orbax refuses a leaf of another shape without its name, and turns one of another type into what is wanted (0.12).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Leaves = Mapping[str, str]
"""Path of a leaf, such as ``params/dense/kernel``, to what it is: ``float32[128,64]``, or ``value`` for a number."""


_KEY = "random key"


def leaves(state: Any) -> dict[str, str]:
    """The leaves of a live state, or of the metadata of a stored one."""
    import orbax.checkpoint as ocp

    flat = ocp.tree.to_flat_dict(state)
    return {"/".join(map(str, path)): _kind(leaf) for path, leaf in flat.items() if not _is_nothing(leaf)}


def stored(path: str) -> dict[str, str]:
    """The leaves of the checkpoint at *path*, see :func:`written`."""
    return leaves(written(path))


def written(path: str) -> Any:
    """The tree of the checkpoint at *path*, by what Orbax wrote of it. Every process may ask for itself.

    Not by a checkpointer, which says of one that cannot be read that it has no tree (Orbax 0.12).

    :raises FileNotFoundError: there is no checkpoint.
    """
    import orbax.checkpoint as ocp

    # Orbax's own kind of path, which knows gs:// too.
    tree = ocp.StandardCheckpointHandler().metadata(ocp.utils.epath.Path(path)).tree
    if not tree:
        raise FileNotFoundError(path)
    return tree


def mismatch(wanted: Leaves, found: Leaves, *, types: bool = True) -> str:
    """How the first leaf that differs does, empty where none does.

    :param wanted: of the model.
    :param found: of the checkpoint.
    :param types: another type of number counts, not only another shape.
    """
    for name in sorted({*wanted, *found}):
        model, saved = wanted.get(name, "missing"), found.get(name, "missing")
        if _KEY in (model, saved):
            # Orbax stores what a random key is made of.
            differs = "missing" in (model, saved)
        elif "missing" in (model, saved) or _shape(model) != _shape(saved):
            differs = True
        else:
            differs = types and "[" in model and "[" in saved and model != saved
        if model != saved and differs:
            return f"{name} is {model} in the model and {saved} in the checkpoint"
    return ""


def _kind(leaf: Any) -> str:
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or type(leaf).__name__ in ("ScalarMetadata", "StringMetadata"):
        return "value"
    kind = f"{dtype}[{','.join(map(str, shape))}]"
    return _KEY if kind.startswith("key<") else kind


def _shape(kind: str) -> str:
    # A plain number has no shape, as an array of no dimension has none.
    return kind.partition("[")[2].rstrip("]")


def _is_nothing(leaf: Any) -> bool:
    return leaf is None or (isinstance(leaf, dict | list | tuple) and not leaf)
