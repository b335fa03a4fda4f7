"""What was found, for people: 80 columns, colour only on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from airflow_raytpu.placement.findings import span

_WIDTH = 80
_COLOURS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def show(asked: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print one block for each task."""
    for number, one in enumerate(asked):
        if number:
            console.print()
        _show(one, console)


def _show(one: Mapping[str, Any], console: Console) -> None:
    _print(console, one["task"], f" {one['operator']}{_on(one['slice'], one['elastic'])}", "bold", indent=4)
    for label, value in _rows(one):
        _print(console, f"  {label:<11}", value, "dim")
    for finding in one["findings"]:
        text = f"{finding['code']} {finding['cause']} {finding['lever']}".rstrip()
        _print(console, f"  {finding['level']:<11}", text, _COLOURS[finding["level"]])
    _print(console, f"  {'ok':<11}", f"{one['passed']} checks", "green")


def _print(console: Console, label: str, value: str, style: str, indent: int = 14) -> None:
    width = min(console.width, _WIDTH)
    lines = textwrap.wrap(
        f"{label} {value}",
        width,
        subsequent_indent=" " * indent,
        drop_whitespace=True,
        break_on_hyphens=False,
    )
    # A table of rich's would fill every line with blanks to its end.
    first = Text(lines[0])
    first.stylize(style, 0, len(label))
    for line in (first, *map(Text, lines[1:])):
        console.print(line, soft_wrap=True)


def _on(slice_: Mapping[str, Any] | None, elastic: Sequence[int] | None) -> str:
    if slice_ is None:
        return ""
    times = f"{slice_['num_slices']} x " if slice_["num_slices"] > 1 else ""
    if elastic is not None:
        times = f"{elastic[0]} to {elastic[1]} x "
    return (
        f" on {times}{slice_['accelerator']} {slice_['topology']} ({_many(slice_['chips'], 'chip')}, "
        f"{_many(slice_['hosts'], 'host')} of {slice_['machine_type']})"
    )


def _rows(one: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if one["copies"] is not None:
        rows.append(("mapped", f"{one['copies']} times; this is the first"))
    rows.append(("runs as", f"{_kind(one['manifest'])}{one['name']} {_where(one)}"))
    if one["code"]:
        rows.append(("code", ", ".join(one["code"])))
    if one["slice"] is not None:
        mesh = one["slice"]["mesh"]
        rows.append(("mesh", f"{_tuple(mesh['flat'])} flat | {_tuple(mesh['hosts'])} hosts x chips"))
    limits = one["deadlines"]
    rows.append(("deadlines", " | ".join(f"{name.removesuffix('_wait')} {span(limits[name])}" for name in limits)))
    rows.append(("storage", f"{one['storage']}/{{checkpoints,outbox}}" if one["kind"] == "train" else one["storage"]))
    rows += [(name[:10], address) for name, address in one["addresses"].items()]
    if one["slice"] is not None:
        cost = f"{one['slice']['chip_hours_per_hour']:,} chip-hours an hour{' at most' * bool(one['elastic'])}"
        shared = one["kind"] != "cluster" and one["cluster"] != "its own"
        rows.append(("costs", f"{cost}, its cluster's" if shared else cost))
    return rows


def _kind(made: Mapping[str, Any] | None) -> str:
    return f"{made['kind']} {made['metadata']['namespace']}/" if made else ""


def _where(one: Mapping[str, Any]) -> str:
    if one["kind"] == "cluster":
        return f"(a cluster, for {span(one['ttl'])} after the last look at it)"
    cluster = one["cluster"]
    if cluster == "its own":
        return "on a cluster of its own"
    return f"on the cluster {cluster}"


def _tuple(axes: Sequence[int]) -> str:
    return str(tuple(axes))


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
