"""What was found, for people: 80 columns, colour only on a terminal; or as data."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO

import yaml
from rich.console import Console
from rich.text import Text

from airflow_raytpu.doctor.findings import Found, Level

_WIDTH = 80
_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}
_INDENT = 24


def show(found: Sequence[Found], title: str, output: str, file: IO[str]) -> None:
    """Write it to *file*.

    :param output: ``text``, ``json`` or ``yaml``.
    """
    if output != "text":
        rows = [each.to_dict() for each in found]
        file.write(json.dumps(rows, indent=2) + "\n" if output == "json" else yaml.safe_dump(rows, sort_keys=False))
        return
    # Asked of the file itself: FORCE_COLOR and the like make rich take anything for a terminal.
    terminal = file.isatty()
    console = Console(
        file=file, force_terminal=terminal, color_system="auto" if terminal else None, highlight=False, markup=False
    )
    shown: set[str] = set()
    for line in (
        *_wrapped(title, 2),
        Text(),
        *(line for each in found for line in _lines(each, shown)),
        Text(),
        _sum(found),
    ):
        console.print(line, soft_wrap=True)


def _lines(found: Found, shown: set[str]) -> Iterator[Text]:
    """:param shown: commands that stand above already."""
    label = f"  {found.level.value:<8} {found.check:<12}"
    first, *more = _wrapped(f"{label} {found.says} {found.lever}".rstrip(), _INDENT)
    first.stylize(_STYLES[found.level], 2, 2 + len(found.level.value))
    yield from (first, *more)
    # As they are typed, so that they can be copied.
    for command in found.apply:
        if command in shown:
            continue
        shown.add(command)
        yield from (Text(f"    {line}", "cyan") for line in command.split("\n"))


def _wrapped(text: str, indent: int) -> list[Text]:
    lines = textwrap.wrap(text, _WIDTH, subsequent_indent=" " * indent, drop_whitespace=True, break_on_hyphens=False)
    return [Text(line) for line in lines]


def _sum(found: Sequence[Found]) -> Text:
    counts = Counter(each.level for each in found)
    return Text(", ".join(f"{counts[level]} {level.value}{_plural(level, counts[level])}" for level in Level))


def _plural(level: Level, count: int) -> str:
    return "" if level is Level.OK or count == 1 else "s"
