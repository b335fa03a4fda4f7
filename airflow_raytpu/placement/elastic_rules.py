"""Rules about a task that may have fewer slices than it would like."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from airflow_raytpu.model.elastic import Elastic
from airflow_raytpu.model.errors import BatchSizeError, RequestError
from airflow_raytpu.placement.findings import Finding, error, raised
from airflow_raytpu.placement.intent import Intent
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice


def check(intent: Intent, stated: TpuSlice | None) -> Iterator[Finding]:
    """That *intent* has a range, and no other number of slices than that says."""
    try:
        elastic = Elastic.read(intent.elastic)
    except RequestError as found:
        yield raised("RT137", found)
        return
    if elastic is not None and stated is not None and stated.num_slices not in (1, elastic.most):
        yield error(
            "RT137",
            f"slice asks for {stated.num_slices} slices, and elastic for {elastic}.",
            f"Leave the number out of slice, or give elastic=({min(elastic.least, stated.num_slices)}, "
            f"{stated.num_slices}).",
        )


def of(intent: Intent) -> Elastic | None:
    """The range; ``None`` where there is none, or :func:`check` finds fault with it."""
    try:
        return Elastic.read(intent.elastic)
    except RequestError:
        return None


def check_batch(intent: Intent, own: TpuSlice, size: int, name: str) -> None:
    """A global batch of *size* rows divides over all devices, however many slices there are.

    :raises BatchSizeError: it does not.
    """
    elastic, whole = of(intent), plan(own)
    if elastic is None or own.num_slices != elastic.most:
        # Of a slice that cannot be several, that is said elsewhere.
        whole.check_batch(size, name)
        return
    sizes = [whole.sized(count) for count in range(elastic.least, elastic.most + 1)]
    for each in sizes:
        try:
            each.check_batch(size, name)
        except BatchSizeError as found:
            common = lcm(*(one.devices for one in sizes))
            raise BatchSizeError(
                f"With {each.slice.num_slices} of {elastic} slices: {found.cause}",
                f"Use a multiple of {common}, or fewer slices in elastic.",
            ) from found
