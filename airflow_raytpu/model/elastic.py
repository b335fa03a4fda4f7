"""How many slices an elastic task may have, as it is written down and as it goes over the wire. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_raytpu.model.errors import RequestError

ARGUMENT = "elastic"
"""Argument of a request that has it."""

_LEVER = "Give elastic=(1, 2): the fewest slices that it goes on with, and the most that it takes."


@dataclass(frozen=True, slots=True)
class Elastic:
    """Whole slices, *least* to *most* of them."""

    least: int
    most: int

    @classmethod
    def read(cls, value: Any) -> Elastic | None:
        """A pair of numbers; ``None`` where there is none.

        :raises RequestError: it is something else, or no range.
        """
        if value is None:
            return None
        pair = tuple(value) if isinstance(value, list | tuple) else ()
        if len(pair) != 2 or not all(isinstance(each, int) and not isinstance(each, bool) for each in pair):
            raise RequestError(f"elastic is {value!r}, which is no pair of whole numbers.", _LEVER)
        least, most = pair
        if not 1 <= least <= most:
            raise RequestError(f"elastic is ({least}, {most}), which is no range from 1 on.", _LEVER)
        return cls(least, most)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Elastic | None:
        """What a request with *arguments* says."""
        return cls.read(arguments.get(ARGUMENT))

    def to_list(self) -> list[int]:
        """For JSON."""
        return [self.least, self.most]

    def __str__(self) -> str:
        return f"{self.least} to {self.most}"
