"""TpuSlice reads what people type and refuses what GKE does not have, with the nearest that it has."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu import TpuSlice
from airflow_raytpu.model.errors import BatchSizeError, SliceShapeError
from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.plan import plan


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("v6e:4x4", "v6e:4x4"),
        ("v6e-4x4", "v6e:4x4"),
        ("v6e-16", "v6e:4x4"),
        ("V6E 4X4", "v6e:4x4"),
        ("v6e:4×4", "v6e:4x4"),
        ("trillium:4x4", "v6e:4x4"),
        ("TPU-V6E 4x4 x2", "v6e:4x4*2"),
        ("v6e:4x4*2", "v6e:4x4*2"),
        ("v5litepod-16", "v5e:4x4"),
        ("ironwood 2x2x2", "tpu7x:2x2x2"),
        ("tpu7x:4x4x4", "tpu7x:4x4x4"),
        ("v6e:2x4@ct6e-standard-8t", "v6e:2x4@ct6e-standard-8t"),
        ("v4-8", "v4:2x2x1"),
        ("v6e:2x4@8t", "v6e:2x4@ct6e-standard-8t"),
        ("v6e-8@4", "v6e:2x4@ct6e-standard-4t"),
        ("2 x v6e 4x4", "v6e:4x4*2"),
        ("tpu-v6e-slice 8x16", "v6e:8x16"),
    ],
)
def test_it_reads_what_people_type(text, canonical):
    assert str(TpuSlice.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v6e:4x5", r"v6e has no topology 4x5[\s\S]*4x4 \(16 chips, 4 hosts\) and 4x8 \(32 chips, 8 hosts\)"),
        ("v9:4x4", r"no TPU generation 'v9'[\s\S]*v4, v5e, v5p, v6e, tpu7x"),
        ("v6e:2x4", "two ways: 1 x 8 chips on ct6e-standard-8t or 2 x 4 chips on ct6e-standard-4t"),
        ("v6e:4x4@ct6e-standard-8t", "does not exist on ct6e-standard-8t"),
        ("v5p-512", "names 2 shapes: 4x4x16, 4x8x8"),
        ("v6e-17", "There is no v6e-17"),
        ("v6e:2x2*2", "several slices only where each has several hosts"),
        ("", "is not a slice"),
        ("v6e:4x4; rm -rf /", "is not a slice"),
        ("v6e:4x4*0", "num_slices is 0"),
        ("v6e:8x4", r"no topology 8x4.\n  Nearest: 4x8 \(32 chips, 8 hosts\)\."),
        ("v6e:2x2x2", r"2x4 \(8 chips, 1 or 2 hosts\) and 4x4"),
        ("v5p:5x5x5", r"4x4x4 \(64 chips, 16 hosts\) and 4x4x8"),
        ("4x4", r"'4x4' names no TPU generation[\s\S]*v5e:4x4, v6e:4x4"),
        ("trillium", r"names no topology[\s\S]*v6e:1x1"),
        ("v6e:4x4@1", "does not exist on a machine of 1 chip"),
        ("2x v6e:4x4*2", "says twice how many"),
        ("v6e-" + "9" * 5000, "is not a slice"),
        ("v6e:4x" + "9" * 5000, "is not a slice"),
    ],
)
def test_it_refuses_with_the_reason_and_the_way_out(text, says):
    with pytest.raises(SliceShapeError, match=says) as caught:
        TpuSlice.parse(text)
    assert caught.value.lever


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        parsed = TpuSlice.parse(text)
    except SliceShapeError:
        return
    assert TpuSlice.parse(str(parsed)) == parsed


def test_counts_are_per_slice_and_in_all():
    two = TpuSlice("v6e", "4x4", num_slices=2)
    assert (two.chips, two.hosts, two.chips_per_host) == (16, 4, 4)
    assert (two.total_chips, two.total_hosts) == (32, 8)
    assert plan(two).mesh == (2, 16)


@pytest.mark.parametrize(("size", "nearest"), [(100, "96 or 112"), (1, "16"), (0, "16"), (-16, "multiple of 16: 16")])
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest(size, nearest):
    with pytest.raises(BatchSizeError, match=f"batch_size is {size}") as caught:
        plan(TpuSlice("v6e", "4x4")).check_batch(size)
    assert nearest in str(caught.value)


def test_the_machine_may_be_said_by_its_chips():
    two = TpuSlice("v6e", "2x4", chips_per_host=4)
    assert two == TpuSlice("v6e", "2x4", machine_type="ct6e-standard-4t")
    assert (two.hosts, two.chips_per_host) == (2, 4)
    assert TpuSlice("v6e", "2x4", chips_per_host=8).hosts == 1
    assert TpuSlice("v6e", "4x4").chips_per_host == 4
    for chips, machine in ((8, "ct6e-standard-4t"), (1, "")):
        with pytest.raises(SliceShapeError, match="does not exist on"):
            TpuSlice("v6e", "2x4", machine_type=machine, chips_per_host=chips)


def test_the_two_readings_are_offered():
    with pytest.raises(SliceShapeError, match="chips_per_host=8 or chips_per_host=4; in text v6e:2x4@ct6e-standard-8t"):
        TpuSlice("v6e", "2x4")


def test_sides_beyond_any_number_are_refused_too():
    with pytest.raises(SliceShapeError, match="has no topology"):
        TpuSlice("v6e", "9" * 5000 + "x4")


@given(st.sampled_from(["v4", "v5e", "v5p", "v6e", "tpu7x"]), st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_every_suggestion_can_be_asked_for(generation, sides):
    try:
        TpuSlice(generation, "x".join(map(str, sides)))
    except SliceShapeError as error:
        lever = error.lever
    else:
        return
    suggested = re.findall(r"(\d+x[\dx]+) \(", lever)
    assert suggested or "machine_type" in lever
    assert all(catalogue.find(generation, topology) for topology in suggested)
