"""Back after a loss that is no number: to what is known to be good, and not twice for the same."""

from __future__ import annotations

import pytest

from airflow_raytpu.model.errors import DivergedError
from airflow_raytpu.runtime.commits import Commit, committed, record
from airflow_raytpu.runtime.rollback import RollBack, pass_over


@pytest.mark.parametrize(
    ("saved", "step", "left"),
    [
        ((5, 10), 13, [10, 5]),
        ((5, 10), 12, [10, 5]),
        ((5, 10), 11, [5]),  # the state of step 10 made the loss of step 11
        ((10,), 11, [10]),  # there is no other: it gets another try
        ((5, 10, 15), 13, [10, 5]),
        ((15,), 13, []),
        ((), 13, []),
    ],
)
def test_what_speaks_against_a_checkpoint_removes_it(tmp_path, caplog, saved, step, left) -> None:
    root = tmp_path.as_uri()
    for each in saved:
        record(Commit(each, f"{root}/{each}", "mine"))
    record(Commit(20, f"{root}/20", "another's"))

    pass_over(root, ("mine",), step)

    assert [commit.step for commit in committed(root, ("mine",))] == left
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(str(each) for each in [*left, 20])
    assert caplog.text.count("is removed: the loss is no number") == len(saved) - len(left)


def test_the_same_step_twice_is_no_accident() -> None:
    one = RollBack()
    one.check(DivergedError.at(13, "The loss is nan at step 13.", "Lower it."))
    one.check(DivergedError.at(1400, "The loss is nan at step 1,400.", "Lower it."))
    twice = r"no number twice at step 1,400, .* The loss is inf at step 1,400"
    with pytest.raises(DivergedError, match=twice) as caught:
        one.check(DivergedError.at(1400, "The loss is inf at step 1,400.", "Lower it."))
    assert caught.value.lever == "Lower it."
