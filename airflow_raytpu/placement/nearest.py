"""The shapes nearest to one that does not exist: what an error suggests instead."""

from __future__ import annotations

from math import log2

from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.catalogue import Shape


def nearest(generation: str, chips: int, sides: tuple[int, ...] = ()) -> list[str]:
    """Topologies of *generation* to use instead: the nearest of at most *chips* chips, and the nearest of more.

    :param sides: what was asked for, side by side. Where it only lacks the order, that shape alone is suggested.
    """
    rows = [row for row in catalogue.shapes() if row.generation.name == generation]
    wanted = tuple(sorted(sides))
    turned = [row for row in rows if tuple(sorted(catalogue.dimensions(row.topology))) == wanted]
    if turned:
        return [turned[0].topology]
    halves = ([row for row in rows if row.chips <= chips], [row for row in rows if row.chips > chips])
    return [min(half, key=lambda row: _distance(row, chips, wanted)).topology for half in halves if half]


def suggest(generation: str, chips: int, sides: tuple[int, ...] = ()) -> str:
    """``4x4 (16 chips, 4 hosts) and 4x8 (32 chips, 8 hosts)``."""
    return " and ".join(_size(catalogue.find(generation, topology)) for topology in nearest(generation, chips, sides))


def _size(rows: tuple[Shape, ...]) -> str:
    hosts = " or ".join(str(row.hosts) for row in sorted(rows, key=lambda row: row.hosts))
    chips = rows[0].chips
    return f"{rows[0].topology} ({chips} chip{'s' * (chips > 1)}, {hosts} host{'s' * (hosts != '1')})"


def _distance(row: Shape, chips: int, sides: tuple[int, ...]) -> tuple[float, float]:
    """How far *row* is in chips and in each side, by factors; chips decide between equals."""
    by_chips = abs(log2(row.chips / max(chips, 1)))
    mine = sorted(catalogue.dimensions(row.topology))
    if len(mine) != len(sides):
        return by_chips, by_chips
    by_side = sum(abs(log2(have / max(side, 1))) for have, side in zip(mine, sides, strict=True))
    return by_chips + by_side, by_chips
