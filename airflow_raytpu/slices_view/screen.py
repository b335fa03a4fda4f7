"""The picture as a table of at most 80 columns, or as data."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import IO

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_raytpu.model.slices import Holder, SliceCondition, SliceState, span

_WIDTH = 80
_GRID = 8
"""Hosts in one line of the grid."""

_STYLES = {
    SliceCondition.IDLE: "green",
    SliceCondition.BUSY: "cyan",
    SliceCondition.BROKEN: "red",
    SliceCondition.STARTING: "yellow",
}
_DATE = re.compile(r"\d{4}-(\d\d-\d\d)")


def show(slices: Sequence[SliceState], output: str, now: float, file: IO[str]) -> None:
    """Write the picture to *file*, in colour where that is a terminal.

    :param output: ``text``, ``json`` or ``yaml``.
    """
    if output != "text":
        rows = [each.to_dict() for each in slices]
        file.write(json.dumps(rows, indent=2) + "\n" if output == "json" else yaml.safe_dump(rows, sort_keys=False))
        return
    # Asked of the file itself: FORCE_COLOR and the like make rich take anything for a terminal.
    terminal = file.isatty()
    console = Console(
        file=file,
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        width=None if terminal else _WIDTH,
    )
    console.print(table(slices, now))


def table(slices: Sequence[SliceState], now: float) -> Table:
    """One row a slice. A cluster's name shows the hash at its end only where that tells it from another."""
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, wraps in (("CLUSTER", True), ("SLICE", True), ("SHAPE", False), ("HOSTS", False), ("STATE", False)):
        rows.add_column(name, no_wrap=not wraps, overflow="fold")
    rows.add_column("HOLDER", overflow="fold")
    rows.add_column("AGE", no_wrap=True)
    named = defaultdict(set)
    for each in slices:
        named[each.cluster_slug].add(each.cluster)
    for each in slices:
        rows.add_row(
            each.cluster if len(named[each.cluster_slug]) > 1 else each.cluster_slug,
            each.name,
            _shape(each.shape),
            grid(each),
            Text(each.condition.value, _STYLES[each.condition]),
            _holders(each),
            span(now - each.since) if each.since else "-",
        )
    return rows


def grid(state: SliceState) -> str:
    """One character a host, by worker id: ``##.#``."""
    hosts = "".join("#" if worker in state.present else "." for worker in range(state.hosts))
    return "\n".join(hosts[start : start + _GRID] for start in range(0, len(hosts), _GRID))


def _shape(shape: str) -> str:
    """``v6e 4x4``; of the machine type only what tells two apart: ``v6e 2x4 (8t)``."""
    chips, _, machine = shape.partition("@")
    return chips.replace(":", " ") + (f" ({machine.rpartition('-')[2]})" if machine else "")


def _holders(state: SliceState) -> str:
    names = ", ".join(map(_holder, state.holders)) or "-"
    return f"{names} ({state.fault})" if state.fault else names


def _holder(holder: Holder) -> str:
    date = _DATE.search(holder.owner.run_id) if holder.owner else None
    return f"{holder} {date[1]}" if date else str(holder)
