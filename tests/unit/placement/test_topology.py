"""TpuSlice reads what people type and refuses what GKE does not have, with the nearest that it has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu import TpuSlice
from airflow_raytpu.model.errors import BatchSizeError, SliceShapeError
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
