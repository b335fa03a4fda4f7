"""The catalogue: arithmetic that must hold for every row, whatever is added to it."""

import re
from collections import Counter
from math import prod

import pytest

from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.catalogue import Tier
from airflow_raytpu.placement.nearest import nearest
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


def test_each_row_has_its_sources():
    for row in ROWS:
        assert row.sources
        tooling = row.tier is Tier.TOOLING_ONLY
        assert tooling != any(source.startswith("https://docs.cloud.google.com") for source in row.sources)


def test_a_workaround_is_stated_exactly_where_ray_and_gke_disagree():
    for row in ROWS:
        disagree = not row.ray_knows or row.ray_chips_per_host != row.chips_per_host
        assert bool(row.workaround) == disagree
    assert sum(bool(row.workaround) for row in ROWS) == 68


def test_a_workaround_names_shapes_that_ray_knows():
    (row,) = catalogue.find("tpu7x", "4x4x12")
    assert row.workaround == (
        "Use a shape that Ray knows: 4x4x8 (128 chips), 4x8x8 (256 chips), 4x4x4 x 3 slices (num_slices)."
    )
    for row in ROWS:
        if not row.ray_knows:
            for topology in re.findall(r"\d+x\d+x\d+", row.workaround):
                assert catalogue.find(row.generation.name, topology)[0].ray_knows


def test_shapes_of_equal_chips_share_a_pod_type():
    (row,) = catalogue.find("v5p", "4x4x16")
    assert [other.topology for other in catalogue.pod_type_sharers(row)] == ["4x8x8"]
    assert catalogue.pod_type_sharers(catalogue.find("v6e", "4x4")[0]) == ()


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_what_nearly_exists_leads_to_it(row):
    """A side too long by one, or the sides in another order: the shape itself is among the suggestions."""
    sides = catalogue.dimensions(row.topology)
    assert nearest(row.generation.name, row.chips, tuple(reversed(sides))) == [row.topology]
    longer = (*sides[:-1], sides[-1] + 1)
    if not catalogue.find(row.generation.name, "x".join(map(str, longer))) and max(sides) > 3:
        assert row.topology in nearest(row.generation.name, prod(longer), longer)
