"""What a job runs: a function, a script file, or a module as ``python -m`` runs it. Found without running it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_raytpu.model.errors import CodeError
from airflow_raytpu.storage.code import Code, find_code, find_module

_FORMS = 'Write "package.module:function", "folder/script.py" or "package.module", or pass a function.'


@dataclass(frozen=True, slots=True)
class Program:
    """One program.

    :param how: ``function``, ``script`` or ``module``: how the cluster is to run ``code.entry``.
    """

    how: str
    code: Code


def find_program(run: str | Callable[..., Any] | Code, what: str = "run") -> Program:
    """The program that *run* names: a function, ``"module:function"``, ``"folder/script.py"`` or ``"package.module"``.

    :raises CodeError: there is no such thing.
    """
    if not isinstance(run, str):
        return Program("function", find_code(run, what))
    if not run.strip():
        raise CodeError(f"{what} is empty.", _FORMS)
    if run.endswith(".py"):
        return Program("script", _script(run, what))
    if ":" in run:
        return Program("function", find_code(run, what))
    return Program("module", find_module(run, what, runnable=True))


def _script(run: str, what: str) -> Code:
    """A script. One in a folder brings the folder, as a module brings its package; another comes alone."""
    path = Path(run)
    if path.is_absolute():
        if not path.is_file():
            raise CodeError(f"{what} {run}: there is no such file.", _FORMS)
        return Code(path.name, ((path.parent, path.name),))
    if ".." in path.parts:
        raise CodeError(f"{what} {run} leads out of the folder it is looked for in.", "Leave .. out.")
    for root in _roots():
        if (root / path).is_file():
            return Code(path.as_posix(), ((root, path.parts[0]),))
    looked = ", ".join(map(str, _roots()))
    raise CodeError(f"{what} {run}: there is no such file.", f"Looked in {looked}; an absolute path is taken as it is.")


def _roots() -> Iterator[Path]:
    # Airflow puts the folder of the DAGs there.
    return (Path(place or ".").absolute() for place in sys.path if Path(place or ".").is_dir())
