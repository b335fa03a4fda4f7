"""The catalogue: arithmetic that must hold for every row, whatever is added to it."""

from collections import Counter
from math import prod

import pytest

from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice

ROWS = catalogue.shapes()
ids = [f"{row.generation.name}-{row.topology}-{row.machine_type}" for row in ROWS]


def test_it_has_every_shape_once():
    assert len(ROWS) == 158
    assert max(Counter((row.generation.name, row.topology, row.machine_type) for row in ROWS).values()) == 1


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_chips_are_hosts_times_chips_per_host(row):
    assert prod(catalogue.dimensions(row.topology)) == row.hosts * row.chips_per_host == row.chips
    assert row.hosts >= 1


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_every_row_can_be_asked_for_and_its_text_reads_back(row):
    asked = TpuSlice(row.generation.name, row.topology, machine_type=row.machine_type)
    assert asked.shape == row
    assert TpuSlice.parse(str(asked)) == asked
    assert plan(asked).devices == row.chips


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_large_shapes_follow_gkes_rule(row):
    if row.chips > 64 and len(catalogue.dimensions(row.topology)) == 3:
        sides = catalogue.dimensions(row.topology)
        assert list(sides) == sorted(sides)
        assert all(side % 4 == 0 for side in sides)
