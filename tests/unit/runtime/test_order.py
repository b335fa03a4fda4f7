"""Which rows are in which batch: each once in an epoch, whoever asks, and wherever it begins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.runtime.order import PADDING, Order

BLOCKS = st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(any)
SEEDS = st.none() | st.integers(0, 3)


@st.composite
def orders(draw):
    """What makes an order with at least one batch: everything but the hosts."""
    blocks, pad = draw(BLOCKS), draw(st.booleans())
    batch = draw(st.integers(1, 24 if pad else min(24, sum(blocks))))
    return {"blocks": blocks, "batch": batch, "lanes": draw(st.integers(1, 9)), "seed": draw(SEEDS), "pad": pad}


def epoch(order, nth=0):
    first = nth * order.per_epoch
    return [order.numbers(number, 0, order.batch) for number in range(first, first + order.per_epoch)]


@given(orders(), st.integers(0, 2))
def test_every_row_is_seen_once_in_an_epoch(stated, nth):
    order = Order(**stated)
    found = np.concatenate(epoch(order, nth))
    rows = sum(stated["blocks"])

    real = sorted(found[found != PADDING])
    if stated["pad"]:
        assert real == list(range(rows))
        assert len(found) - rows < stated["batch"]
        # Padding comes last, in the last batch alone.
        assert (found[rows:] == PADDING).all()
    else:
        assert len(real) == len(found) == rows - rows % stated["batch"]
        assert len(set(real)) == len(real)
        assert set(real) <= set(range(rows))


@given(orders(), st.integers(1, 6), st.integers(0, 40))
def test_a_batch_is_the_same_on_any_number_of_hosts(stated, share, number):
    stated["batch"] = share * max(1, stated["batch"] // share)
    if not stated["pad"] and stated["batch"] > sum(stated["blocks"]):
        stated["pad"] = True
    whole = Order(**stated).numbers(number, 0, stated["batch"])

    for hosts in {1, share, stated["batch"]}:
        each = stated["batch"] // hosts
        # Each host has an order of its own, and begins where it likes.
        parts = [Order(**stated).numbers(number, rank * each, (rank + 1) * each) for rank in range(hosts)]
        assert np.concatenate(parts).tolist() == whole.tolist()


@given(orders(), st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_a_batch_is_the_same_whatever_was_asked_before(stated, numbers):
    used = Order(**stated)

    for number in numbers:
        fresh = Order(**stated).numbers(number, 0, stated["batch"])
        assert used.numbers(number, 0, stated["batch"]).tolist() == fresh.tolist()


@given(orders(), st.integers(0, 60))
def test_the_rows_seen_are_those_of_the_batches_before(stated, batches):
    order = Order(**stated)

    found = [order.numbers(number, 0, order.batch) for number in range(batches)]
    assert order.seen(batches) == sum(int((numbers != PADDING).sum()) for numbers in found)


def test_without_a_seed_the_order_is_the_files():
    assert np.concatenate(epoch(Order([3, 0, 4, 5], 4, 9, None, pad=False), 2)).tolist() == list(range(12))


def test_each_epoch_and_each_seed_has_an_order_of_its_own():
    orders = [
        np.concatenate(epoch(Order([400, 300, 300], 50, 5, seed, pad=False), nth)) for seed in (0, 1) for nth in (0, 1)
    ]

    assert len({tuple(order) for order in orders}) == 4
    # What was left out of one epoch is in another.
    left = [set(range(1000)) - set(np.concatenate(epoch(Order([500] * 2, 300, 4, 0, pad=False), n))) for n in range(8)]
    assert [len(each) for each in left] == [100] * 8
    assert not set.intersection(*left)


def test_a_shuffled_batch_mixes_blocks_and_yet_needs_few_at_a_time():
    order = Order([100] * 40, 32, 8, 7, pad=False)

    for numbers in epoch(order):
        assert 4 <= len(set(numbers // 100)) <= 9
    # A quarter of the hosts needs a quarter of them.
    assert all(len(set(order.numbers(number, 0, 8) // 100)) <= 3 for number in range(order.per_epoch))


def test_the_order_stays_what_it_was():
    """A resumed run may have another version of NumPy, or of us."""
    order = Order([5, 7], 4, 2, 3, pad=True)

    assert [numbers.tolist() for numbers in epoch(order)] == PINNED


PINNED = [[0, 1, 5, 8], [3, 2, 7, 9], [4, 6, 11, 10]]


@pytest.mark.parametrize("rows", [1, 7])
def test_fewer_rows_than_a_batch_make_one_where_it_is_padded(rows):
    order = Order([rows], 8, 4, 1, pad=True)

    assert order.per_epoch == 1
    assert sorted(order.numbers(3, 0, 8)) == [PADDING] * (8 - rows) + list(range(rows))
    assert Order([rows], 8, 4, 1, pad=False).per_epoch == 0
