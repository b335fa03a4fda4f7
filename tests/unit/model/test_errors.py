"""Every error has a code of its own and says cause and lever."""

import pytest

from airflow_raytpu.model import errors

TREE = errors._tree(errors.RayTpuError)


def test_codes_are_unique():
    codes = [kind.code for kind in TREE]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_an_error_survives_its_code(kind):
    again = errors.from_code(kind.code, "cause", "lever")
    assert type(again) is kind
    assert str(again) == f"cause\n  lever  [{kind.code}]"


def test_a_code_from_the_future_is_still_an_error_of_ours():
    error = errors.from_code("RT999", "something new")
    assert type(error) is errors.RayTpuError
    assert "something new" in str(error)


def test_the_tree_is_drawn_in_full():
    for kind in TREE:
        assert kind.__name__ in errors.__doc__
