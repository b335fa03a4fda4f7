"""The author's helper: saved by policy, the last step always, restored as it was."""

import pickle
import threading
from typing import NamedTuple

import numpy as np
import pytest

from airflow_raytpu.model.errors import CheckpointError, DivergedError, LostError, PathError
from airflow_raytpu.model.policies import CheckpointPolicy
from airflow_raytpu.runtime import checkpoints, files, saving, trees
from airflow_raytpu.runtime.checkpoints import Session
from airflow_raytpu.runtime.commits import committed
from airflow_raytpu.runtime.resizing import ResizeError


@pytest.fixture
def jax(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    import jax

    return jax


@pytest.fixture
def reported(monkeypatch):
    found = []
    monkeypatch.setattr(checkpoints, "_report", found.append)
    return found


@pytest.fixture
def told():
    return []


@pytest.fixture
def make_session(tmp_path, told):
    def make(**changes):
        values = {
            "root": (tmp_path / "check points").as_uri(),
            "request": "one",
            "policy": CheckpointPolicy(every_steps=10),
            "lineage": ("one",),
            "restore": None,
            "total": 40,
            "rank": 0,
            "tell": told.append,
        }
        return Session(**values | changes)

    return make


def train(session, init, steps):
    with checkpoints.opened(session):
        state, step = checkpoints.restore_or_init(init)
        started = step
        while step < steps:
            state = {**state, "x": state["x"] + 1}
            step += 1
            checkpoints.step(step, state, {"loss": 1 / step})
        session.finish()
    return started, state


def steps(session):
    return [commit.step for commit in committed(session.root, session.lineage)]


def test_a_run_goes_on_where_it_was_saved_and_the_last_step_is_always_saved(jax, make_session, reported):
    def init():
        return {"x": jax.numpy.zeros((4, 2)), "key": jax.random.key_data(jax.random.key(0)), "name": 3}

    first = make_session()
    assert train(first, init, 25)[0] == 0
    assert steps(first) == [25, 20]
    assert [commit.step for commit in reported] == [10, 20, 25]

    second = make_session(restore=committed(first.root, ["one"])[0])
    started, state = train(second, init, 31)

    assert started == 25
    assert state["x"].tolist() == [[31.0, 31.0]] * 4
    assert steps(second) == [31, 25]
    assert second.commit.metrics == {"loss": 1 / 31}

    plain = checkpoints.load(second.commit.uri)

    assert plain["x"].tolist() == [[31.0, 31.0]] * 4
    assert type(plain["x"]).__module__ == "numpy"


def test_a_run_with_nothing_left_to_do_saves_nothing_anew(jax, make_session, reported):
    first = make_session()
    train(first, lambda: {"x": jax.numpy.zeros(2)}, 10)
    second = make_session(restore=committed(first.root, ["one"])[0])

    started, _ = train(second, lambda: {"x": jax.numpy.zeros(2)}, 10)

    assert started == 10
    assert [commit.step for commit in reported] == [10]
    assert second.step == 10


def test_there_is_no_checkpoint_there(jax, tmp_path):
    with pytest.raises(PathError, match="There is no checkpoint at"):
        checkpoints.load((tmp_path / "none").as_uri())


def test_outside_a_task_the_loop_runs_unsaved():
    assert checkpoints.restore_or_init(lambda: "fresh") == ("fresh", 0)
    checkpoints.step(1, "state", {"loss": 1.0})


def quick():
    """After a save that failed, Orbax's threads wait as long as this, and the interpreter for them."""
    import orbax.checkpoint as ocp

    return ocp.options.AsyncOptions(timeout_secs=5)


@pytest.fixture(autouse=True)
def threads_that_end(monkeypatch):
    make = saving._orbax
    monkeypatch.setattr(saving, "_orbax", lambda longest_s: make(min(longest_s, 5)))


class Slow:
    """Orbax, but a save ends only when the gate is open, and some fail."""

    def __init__(self, faults=()):
        self.faults, self.made, self.gate = list(faults), 0, threading.Event()
        self.gate.set()

    def __call__(self, longest_s):
        import orbax.checkpoint as ocp

        self.made += 1
        self.inner = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler(), async_options=quick())
        return self

    def save(self, path, args, force):
        self.inner.save(path, args=args, force=force)

    def wait_until_finished(self):
        self.inner.wait_until_finished()
        self.gate.wait(10)
        fault = self.faults.pop(0) if self.faults else None
        if fault:
            raise fault

    def close(self):
        self.inner.close()


FULL = OSError("disk full\nand more")


def test_a_last_save_that_failed_fails_the_task(jax, make_session, reported):
    session = make_session(make=Slow([None, FULL]))
    state = {"x": jax.numpy.zeros(2)}
    with checkpoints.opened(session):
        checkpoints.step(10, state)
        checkpoints.step(13, state)
        with pytest.raises(CheckpointError, match=r"step 13 could not be saved: disk full .it was the last") as caught:
            session.finish()

    assert "The last good one is step 10 (" in str(caught.value)
    assert steps(session) == [10]


def test_a_save_that_failed_is_told_and_the_loop_goes_on(jax, make_session, reported, caplog):
    slow = Slow([None, FULL, FULL])
    session = make_session(make=slow)

    train(session, lambda: {"x": jax.numpy.zeros(2)}, 45)

    assert [commit.step for commit in reported] == [10, 40, 45]
    assert steps(session) == [45, 40]
    told = [line for line in caplog.messages if "could not be saved" in line]
    assert len(told) == 2
    assert "step 30" in told[1]
    assert "(2 of 3 in a row). The last good one is step 10" in told[1]
    # Torn ones that are older than the newest good one are gone.
    assert files.children(session.root) == ["40", "45"]


def test_too_many_failed_saves_in_a_row_fail_the_task(jax, make_session, reported):
    session = make_session(make=Slow([FULL, None, FULL, FULL, FULL]))

    with pytest.raises(CheckpointError, match=r"step 50 could not be saved.*3 saves have failed one after another"):
        train(session, lambda: {"x": jax.numpy.zeros(2)}, 100)

    assert steps(session) == [20]


def test_storage_that_refuses_is_a_failed_save(jax, make_session, tmp_path, reported):
    (tmp_path / "file").write_text("no folder")
    session = make_session(
        root=(tmp_path / "file" / "x").as_uri(), policy=CheckpointPolicy(failed_saves=1, longest_save=1)
    )

    with pytest.raises(CheckpointError, match="could not be saved"):
        train(session, lambda: {"x": jax.numpy.zeros(2)}, 3)


def test_a_save_that_is_stuck_ends_the_try(jax, make_session, reported, monkeypatch):
    monkeypatch.setattr("airflow_raytpu.runtime.saving._FAREWELL_S", 0.0)
    slow = Slow()
    slow.gate.clear()
    session = make_session(make=slow, policy=CheckpointPolicy(every_steps=1, longest_save=0.01))
    session.after(1, {"x": jax.numpy.zeros(2)}, {})

    with pytest.raises(LostError, match="save of step 1 has not ended within 0 s"):
        session.after(2, {"x": jax.numpy.zeros(2)}, {})

    slow.gate.set()


def test_a_save_runs_beside_the_loop(jax, make_session, reported):
    slow = Slow()
    slow.gate.clear()
    session = make_session(make=slow, policy=CheckpointPolicy(every_steps=1))

    session.after(1, {"x": jax.numpy.zeros(2)}, {})

    assert steps(session) == []
    slow.gate.set()
    session.finish()
    assert steps(session) == [1]


def test_what_lost_a_file_before_the_commit_does_not_count(jax, make_session, reported, tmp_path, caplog):
    class Lossy(Slow):
        def wait_until_finished(self):
            super().wait_until_finished()
            if self.made == 1:
                (tmp_path / "check points" / "10" / "_METADATA").unlink()

    session = make_session(make=Lossy())

    train(session, lambda: {"x": jax.numpy.zeros(2)}, 20)

    assert steps(session) == [20]
    assert [line for line in caplog.messages if "checkpoint of step 10 could not be saved" in line]


def test_the_best_is_kept_and_found(jax, make_session, reported):
    session = make_session(policy=CheckpointPolicy(every_steps=1, keep=1, best=("loss", "min")))
    with checkpoints.opened(session):
        for step, loss in enumerate([3.0, 1.0, 2.0, 1.5], 1):
            checkpoints.step(step, {"x": jax.numpy.zeros(2)}, {"loss": loss})
        session.finish()

    assert steps(session) == [4, 2]
    assert session.best().step == 2


def test_a_metric_that_nobody_reports_has_no_best(jax, make_session, reported, caplog):
    session = make_session(policy=CheckpointPolicy(best=("accuracy", "max")))

    train(session, lambda: {"x": jax.numpy.zeros(2)}, 3)

    assert session.best() is None
    assert "No checkpoint has the metric 'accuracy'" in caplog.text


def test_by_the_clock(jax, make_session, reported):
    now = [0.0]
    session = make_session(policy=CheckpointPolicy(every_seconds=30, keep=9), ticks=lambda: now[0])
    with checkpoints.opened(session):
        for step in range(1, 101):
            now[0] += 1
            checkpoints.step(step, {"x": jax.numpy.zeros(2)})
        session.finish()

    assert steps(session) == [100, 90, 60, 30]


def test_on_notice_it_saves_at_the_next_step_and_leaves(jax, make_session, reported):
    notice, now = [], [0.0]
    session = make_session(noticed=lambda: "".join(notice), ticks=lambda: now[0])
    with checkpoints.opened(session), pytest.raises(LostError, match="node 1 goes: saved at step 14, and left in time"):
        for step in range(1, 100):
            now[0] += 1
            if step == 14:
                notice.append("node 1 goes")
            checkpoints.step(step, {"x": jax.numpy.zeros(2)})

    assert steps(session)[0] == 14


def test_a_save_that_fails_on_notice_costs_its_steps_and_not_the_task(jax, make_session, reported):
    notice, now = [], [0.0]
    session = make_session(make=Slow([None, FULL]), noticed=lambda: "".join(notice), ticks=lambda: now[0])
    with (
        checkpoints.opened(session),
        pytest.raises(LostError, match="node 1 goes: step 14 could not be saved, and left in time"),
    ):
        for step in range(1, 100):
            now[0] += 1
            if step == 14:
                notice.append("node 1 goes")
            checkpoints.step(step, {"x": jax.numpy.zeros(2)})

    assert steps(session) == [10]


def go_on(jax, session, now, steps):
    """Until the last step, a second each; whether it came to that."""
    with checkpoints.opened(session):
        for step in range(1, steps + 1):
            now[0] += 1
            checkpoints.step(step, {"x": jax.numpy.zeros(2)})
        session.finish()


def test_for_more_slices_it_ends_at_the_next_save_that_is_good(jax, make_session, reported):
    now = [0.0]
    session = make_session(
        make=Slow([None, FULL, None]), wished=lambda: "b free" if now[0] >= 14 else "", ticks=lambda: now[0]
    )

    with pytest.raises(ResizeError, match="b free: saved at step 30, to go on with more slices"):
        go_on(jax, session, now, 40)

    assert steps(session) == [30, 10]


def test_the_last_step_is_no_reason_to_begin_again_with_more_slices(jax, make_session, reported):
    now = [0.0]
    session = make_session(wished=lambda: "b free" if now[0] >= 31 else "", ticks=lambda: now[0])

    go_on(jax, session, now, 40)

    assert steps(session) == [40, 30]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_the_task_before_it_is_saved(jax, make_session, reported, loss):
    session = make_session()
    with checkpoints.opened(session), pytest.raises(DivergedError) as caught:
        for step in range(1, 100):
            value = jax.numpy.float32(loss if step >= 15 else 1 / step)
            checkpoints.step(step, {"x": jax.numpy.zeros(2)}, {"loss": value})

    # Seen before the save of step 20, and found where it began.
    assert f"The loss is {loss} at step 15 (it was a number at step 14)." in caught.value.cause
    assert pickle.loads(pickle.dumps(caught.value)).step == 15
    assert f"The last good checkpoint is step 10 ({session.root}/10)." in caught.value.cause
    assert steps(session) == [10]


def test_a_loss_that_is_no_number_may_be_ignored(jax, make_session, reported):
    session = make_session(on_nan="ignore")
    with checkpoints.opened(session):
        checkpoints.step(1, {"x": jax.numpy.zeros(2)}, {"loss": float("nan"), "lr": 1.0})
        session.finish()

    assert session.commit.metrics == {"lr": 1.0}


class Moments(NamedTuple):
    count: object
    mean: dict


def model(jax, width=2, dtype="float32", **more):
    zeros = jax.numpy.zeros((4, width), dtype)
    return {"layer": {"w": zeros, **more}, "moments": (Moments(jax.numpy.int32(0), {"w": zeros}), ()), "epoch": 1}


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"width": 3}, "layer/w is float32[4,3] in the model and float32[4,2] in the checkpoint"),
        ({"dtype": "bfloat16"}, "layer/w is bfloat16[4,2] in the model and float32[4,2] in the checkpoint"),
        ({"bias": np.zeros(4)}, "layer/bias is float64[4] in the model and missing in the checkpoint"),
    ],
)
def test_a_checkpoint_of_another_model_names_the_first_leaf(jax, make_session, reported, other, text):
    first = make_session()
    with checkpoints.opened(first):
        checkpoints.step(10, model(jax))
        first.finish()

    with checkpoints.opened(make_session(restore=first.commit)), pytest.raises(CheckpointError) as caught:
        checkpoints.restore_or_init(lambda: model(jax, **other))

    assert text in caught.value.cause
    with checkpoints.opened(make_session(restore=first.commit)):
        state, step = checkpoints.restore_or_init(lambda: model(jax))
    assert (step, state["moments"][0]._fields, state["epoch"]) == (10, ("count", "mean"), 1)


def test_random_keys_and_empty_parts_fit_themselves(jax, make_session, reported):
    state = {"key": jax.random.key(3), "none": None, "empty": {}, "n": 3, "f": 1.5}
    first = make_session()
    with checkpoints.opened(first):
        checkpoints.step(10, state)
        first.finish()

    with checkpoints.opened(make_session(restore=first.commit)):
        again, _ = checkpoints.restore_or_init(lambda: state)

    assert jax.random.key_data(again["key"]).tolist() == jax.random.key_data(state["key"]).tolist()


def test_a_warm_start_has_the_state_and_begins_at_step_0(jax, make_session, reported, tmp_path):
    first = make_session(root=(tmp_path / "before").as_uri())
    train(first, lambda: {"x": jax.numpy.zeros(2)}, 25)
    second = make_session(warm_start=first.commit.uri)

    started, state = train(second, lambda: {"x": jax.numpy.zeros(2, "bfloat16")}, 5)

    assert started == 0
    assert (state["x"].tolist(), str(state["x"].dtype)) == ([30.0, 30.0], "bfloat16")
    assert steps(second) == [5]
    # Once the run has a checkpoint of its own, that one counts.
    third = make_session(warm_start=first.commit.uri, restore=second.commit)
    assert train(third, lambda: {"x": jax.numpy.zeros(2, "bfloat16")}, 6)[0] == 5


def test_a_warm_start_that_does_not_fit_is_refused(jax, make_session, reported, tmp_path):
    first = make_session(root=(tmp_path / "before").as_uri())
    train(first, lambda: {"x": jax.numpy.zeros(2)}, 5)

    with (
        checkpoints.opened(make_session(warm_start=first.commit.uri)),
        pytest.raises(CheckpointError, match=r"x is float32\[3\] in the model and float32\[2\] in the checkpoint"),
    ):
        checkpoints.restore_or_init(lambda: {"x": jax.numpy.zeros(3)})
    with (
        checkpoints.opened(make_session(warm_start=(tmp_path / "none").as_uri())),
        pytest.raises(PathError, match="There is no checkpoint at"),
    ):
        checkpoints.restore_or_init(lambda: {"x": jax.numpy.zeros(3)})


def test_the_first_difference_is_by_name():
    assert trees.mismatch({"b": "float32[1]", "a": "value"}, {"b": "float32[2]", "a": "int32[]"}) == (
        "b is float32[1] in the model and float32[2] in the checkpoint"
    )
    assert trees.mismatch({"a": "float32[1]"}, {"a": "float16[1]"}, types=False) == ""


class Quiet:
    """A board on which nothing is ever asked for."""

    def hear(self, topic, within_s):
        return {"save": False, "leave": "", "part": "", "next": 10**9}


def test_progress_is_told_once_a_second_by_rank_0_alone(make_session, told):
    now = [100.0]
    session = make_session(policy=CheckpointPolicy(every_steps=10**6), clock=lambda: now[0])
    for step in range(1, 41):
        now[0] += 0.25
        session.after(step, None, {"loss": 1.0})
    make_session(policy=CheckpointPolicy(every_steps=10**6), rank=1, board=Quiet()).after(5, None, {})

    assert [news["done"] for news in told] == list(range(1, 41, 4))
    assert all(news["rate"] == pytest.approx(4.0) for news in told[1:])
    assert told[0]["total"] == 40
    assert "rate" not in told[0]
