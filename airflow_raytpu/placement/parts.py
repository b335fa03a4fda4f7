"""Parts of a slice: a few of its hosts that are a smaller torus by themselves, as Ray 2.60 divides it."""

from __future__ import annotations

from airflow_raytpu.model.errors import SliceShapeError
from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.catalogue import Shape

# What Ray 2.60 can divide, or divide into (ray._private.accelerators.tpu); a contract test holds it against the
# installed.
DIVISIBLE = (
    *("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16"),
    "16x16x24",
)


def check_part(part: Shape, whole: str, count: int) -> None:
    """*part* is one of the equal parts of a slice of the topology *whole*.

    :param count: how many parts one job asks for.
    :raises SliceShapeError: no slice divides so, or there are several: between parts there is no ICI.
    """
    generation = part.generation.name
    if count > 1:
        raise SliceShapeError(f"A job asks for {count} parts of slices.", "Ask for one larger part, or whole slices.")
    if not _divides(part, whole):
        wholes = [row.topology for row in catalogue.shapes() if row.generation is part.generation]
        fitting = [each for each in dict.fromkeys(wholes) if _divides(part, each)]
        raise SliceShapeError(
            f"No {generation} {whole} divides into parts of {part.topology}.",
            f"{generation} {part.topology} is a part of {', '.join(fitting)}." if fitting else "Take whole slices.",
        )


def hosts_grid(topology: str) -> tuple[int, ...]:
    """How the hosts of a slice of four-chip hosts lie: each has two by two chips along the first two sides."""
    first, second, *rest = catalogue.dimensions(topology)
    return (first // 2, second // 2, *rest)


def _divides(part: Shape, whole: str) -> bool:
    rows = [row for row in catalogue.find(part.generation.name, whole) if row.multi_host]
    if not rows or not rows[0].ray_knows or part.topology == whole or not {part.topology, whole} <= set(DIVISIBLE):
        return False
    grids = zip(hosts_grid(whole), hosts_grid(part.topology), strict=True)
    return all(large >= small and large % small == 0 for large, small in grids)
