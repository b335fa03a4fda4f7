"""The author's helper: saved by policy, the last step always, restored as it was."""

import threading

import pytest

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.runtime import checkpoints, files
from airflow_raytpu.runtime.checkpoints import Session
from airflow_raytpu.runtime.commits import committed


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
            "every": 10,
            "keep": 2,
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


class Saver:
    """Stands in for Orbax."""

    def __init__(self, fault=None):
        self.fault, self.saved, self.gate = fault, [], threading.Event()
        self.gate.set()

    def save(self, path, args, force):
        self.saved.append(path)

    def wait_until_finished(self):
        self.gate.wait(10)
        if self.fault:
            raise self.fault

    def close(self):
        pass


def test_a_save_that_failed_fails_the_task(jax, make_session, reported):
    session = make_session(_saver=Saver(OSError("disk full")))
    with (
        checkpoints.opened(session),
        pytest.raises(PathError, match="checkpoint of step 3 could not be saved: disk full"),
    ):
        checkpoints.step(3, {"x": 1})
        session.finish()

    assert reported == []
    assert files.children(session.root) == []


def test_a_save_runs_beside_the_loop(jax, make_session, reported):
    saver = Saver()
    saver.gate.clear()
    session = make_session(every=1, _saver=saver)

    session.after(1, {"x": 1}, {})

    assert steps(session) == []
    saver.gate.set()
    session.finish()
    assert steps(session) == [1]


def test_progress_is_told_once_a_second_by_rank_0_alone(make_session, told):
    now = [100.0]
    session = make_session(every=10**6, clock=lambda: now[0])
    for step in range(1, 41):
        now[0] += 0.25
        session.after(step, None, {"loss": 1.0})
    make_session(every=10**6, rank=1).after(5, None, {})

    assert [news["done"] for news in told] == list(range(1, 41, 4))
    assert all(news["rate"] == pytest.approx(4.0) for news in told[1:])
    assert told[0]["total"] == 40
    assert "rate" not in told[0]
