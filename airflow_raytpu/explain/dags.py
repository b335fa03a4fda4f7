"""The DAGs of a folder, read as Airflow's DAG processor reads them, with no database behind."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class UnknownNameError(LookupError):
    """There is no such DAG or task. The text says which there are."""


class BrokenDagError(Exception):
    """The file that holds the DAG cannot be imported. The text says why."""


@dataclass(frozen=True, slots=True)
class Folder:
    """What was read.

    :param failures: file to the traceback of its import.
    """

    path: Path
    dags: Mapping[str, Any]
    failures: Mapping[str, str]

    def dag(self, dag_id: str) -> Any:
        """:raises BrokenDagError: its file cannot be imported. :raises UnknownNameError: no file has it."""
        if dag_id in self.dags:
            return self.dags[dag_id]
        for file, why in self.failures.items():
            if dag_id in _text_of(self.path, file):
                raise BrokenDagError(f"{file} cannot be imported:\n{_last_words(why)}")
        broken = "".join(f"\n  {file} cannot be imported: {_last_words(why)}" for file, why in self.failures.items())
        raise UnknownNameError(f"There is no DAG {dag_id!r} in {self.path}. {near(dag_id, self.dags)}{broken}")


def read(folder: Path | None) -> Folder:
    """The DAGs of *folder*, Airflow's own ``dags_folder`` where left out."""
    # Read by Airflow when it is imported: what a file's import says is told here, not in a log.
    os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "CRITICAL")
    with contextlib.redirect_stdout(sys.stderr):
        from airflow import settings
        from airflow.dag_processing.dagbag import DagBag

        path = (folder or Path(settings.DAGS_FOLDER)).absolute()
        if not path.exists():
            raise UnknownNameError(f"There is no folder {path}. Give --dags-folder.")
        # The processor, too, lets DAG files import what lies beside them.
        sys.path.insert(0, str(path if path.is_dir() else path.parent))
        bag = DagBag(path, load_op_links=False)
    return Folder(path, bag.dags, bag.import_errors)


def near(name: str, known: Iterable[str]) -> str:
    """``Did you mean train?``, or the names there are."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"There are: {', '.join(names[:12])}." if names else "There are none."


def _text_of(path: Path, file: str) -> str:
    found = next((place for place in (Path(file), path / file) if place.is_file()), None)
    return found.read_text(errors="replace") if found else ""


def _last_words(trace: str) -> str:
    """The error at the end of a traceback, in all its lines."""
    lines = trace.rstrip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith(('  File "', "    "))]
    rest = lines[frames[-1] + 1 :] if frames else lines
    return "\n".join(rest or lines[-1:])
