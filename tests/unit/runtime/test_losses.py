"""Where a loss stopped to be a number, found by reading as few of them as can be."""

from __future__ import annotations

from typing import ClassVar

import pytest

from airflow_raytpu.runtime import losses
from airflow_raytpu.runtime.losses import Losses

NAN = float("nan")
NEWEST = 10**9


class Read(float):
    """A loss that says when it is read."""

    read: ClassVar[list[float]] = []

    def __float__(self) -> float:
        Read.read.append(float.__float__(self))
        return float.__float__(self)


def seen(*values: object, watch: Losses | None = None, begin: int = 1) -> Losses:
    watch = watch or Losses()
    for step, value in enumerate(values, begin):
        watch.add(step, {"loss": value, "lr": NAN})
    return watch


def test_while_all_is_well_only_the_newest_is_read() -> None:
    Read.read = []
    watch = seen(*(Read(step) for step in range(1, 50)))
    assert watch.broken(NEWEST) is None
    assert (Read.read, watch.sound_at) == ([49.0], 49)
    assert watch.broken(NEWEST) is None


@pytest.mark.parametrize("bad", [NAN, float("inf"), float("-inf")])
def test_the_first_that_is_no_number_is_found(bad: float) -> None:
    watch = seen(1.0, 2.0)
    watch.broken(NEWEST)
    seen(3.0, bad, NAN, watch=watch, begin=3)
    found = watch.broken(NEWEST)
    assert found is not None
    assert (found[0], repr(found[1]), watch.sound_at) == (4, repr(bad), 3)


def test_what_is_no_scalar_or_not_there_is_not_judged() -> None:
    class Deleted:
        def __float__(self) -> float:
            raise RuntimeError("Array has been deleted.")

    watch = seen(None, "text", [1.0], Deleted())
    assert watch.broken(NEWEST) is None
    watch.add(5, {})
    assert watch.broken(NEWEST) is None
    seen(Deleted(), NAN, watch=watch, begin=6)
    found = watch.broken(NEWEST)
    assert found is not None
    assert found[0] == 7


def test_of_very_many_the_newest_are_remembered(monkeypatch) -> None:
    watch = seen(*[NAN] * (losses._MOST + 5))
    found = watch.broken(NEWEST)
    assert found is not None
    assert found[0] == 6


def test_what_came_after_is_left_for_later() -> None:
    watch = seen(1.0, 2.0, NAN)
    assert watch.broken(2) is None
    assert watch.sound_at == 2
    found = watch.broken(3)
    assert found is not None
    assert found[0] == 3
