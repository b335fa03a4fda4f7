"""The author's code: found by name, called, and quoted in its own words where it raises."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_raytpu.model.errors import CodeError, RayTpuError

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple(
    {
        os.path.realpath(path)
        for key, path in sysconfig.get_paths().items()
        if key in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)


class AuthorError(Exception):
    """The author's code raised. Plain text only, so that it survives any pickle.

    :param cause: who raised what, and where.
    :param traceback: the author's own frames; the last line names file, line, type and message.
    :param at: when, in seconds since the epoch: the first of several is the one to blame.
    :param collateral: it looks like the echo of another host's failure.
    """

    def __init__(self, cause: str, traceback: str, at: float, collateral: bool = False) -> None:
        super().__init__(cause, traceback, at, collateral)
        self.cause = cause
        self.traceback = traceback
        self.at = at
        self.collateral = collateral

    def __str__(self) -> str:
        return f"{self.cause}\n{self.traceback}"


def load(reference: str) -> Callable[..., Any]:
    """The function that ``module:qualname`` names.

    :raises CodeError: there is no such module or function.
    :raises AuthorError: the module raised while it was imported.
    """
    module_name, _, qualname = reference.partition(":")
    with quoted(f"{module_name} could not be imported: it"):
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise CodeError(
                f"There is no module {error.name!r} on the cluster (for {reference!r}).",
                "Code is shipped from the DAG's folder; a library must be in the Ray image.",
            ) from error
    for name in qualname.split("."):
        if not hasattr(found, name):
            raise CodeError(
                f"{module_name} has no {qualname!r}.", "Write module:function, as the module itself names it."
            )
        found = getattr(found, name)
    return found  # type: ignore[no-any-return]


@contextmanager
def quoted(what: str, where: Callable[[], str] = str) -> Iterator[None]:
    """Turn what is raised inside into an :class:`AuthorError` that says ``<what> raised <its type><where()>``."""
    try:
        yield
    except (RayTpuError, AuthorError):
        raise
    except Exception as error:
        cause = f"{what} raised {type(error).__name__}{where()}."
        raise AuthorError(cause, own_frames(error), time.time(), is_collateral(error)) from error


def is_collateral(error: BaseException) -> bool:
    """Whether *error* may only be the echo of another host's failure: JAX says so of a broken collective."""
    return type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")


def first_to_blame(errors: Mapping[int, BaseException]) -> AuthorError | None:
    """Of the errors by rank, the author's error that came first; an echo only where there is nothing else."""
    raised = [error for error in errors.values() if isinstance(error, AuthorError)]
    return min(raised, key=lambda error: (error.collateral, error.at), default=None)


def own_frames(error: BaseException) -> str:
    """The author's own frames of *error* and of its causes, and a last line ``digits/train.py:58: ValueError: ...``.

    Where no frame is the author's, all frames are given.
    """
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    # JAX hangs its unfiltered frames below every error as a cause.
    before = "" if cause is None or type(cause).__module__.startswith("jax") else own_frames(cause) + "\n\n"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame.filename)] or list(frames)
    for frame in own:
        frame.filename = _short(frame.filename)
    message = str(error).strip()
    lines = ["Traceback (most recent call last):", *"".join(traceback.format_list(own)).rstrip().splitlines()]
    if "\n" in message:
        lines += message.splitlines()
    where = f"{own[-1].filename}:{own[-1].lineno}: " if own else ""
    headline = message.splitlines()[0] if message else ""
    lines.append(f"{where}{type(error).__name__}: {headline}".rstrip(": "))
    return before + "\n".join(lines)


def _is_own(filename: str) -> bool:
    path = os.path.realpath(filename)
    if filename.startswith("<") or path.startswith(_PACKAGE + os.sep):
        return False
    return not any(path.startswith(folder + os.sep) for folder in _LIBRARIES)


def _short(filename: str) -> str:
    """*filename* below the entry of ``sys.path`` that it was imported from."""
    path = os.path.realpath(filename)
    roots = [os.path.realpath(entry or Path.cwd()) for entry in sys.path]
    above = [root for root in roots if path.startswith(root + os.sep)]
    return os.path.relpath(path, max(above, key=len)) if above else filename
