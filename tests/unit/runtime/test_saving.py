"""Saves of a gang: what fails on one host fails for all, at once and with its cause."""

import threading

import pytest

from airflow_raytpu.model.errors import CheckpointError, LostError
from airflow_raytpu.model.policies import CheckpointPolicy
from airflow_raytpu.runtime import files, saving
from airflow_raytpu.runtime.commits import Commit
from airflow_raytpu.runtime.saving import Saver

FULL = OSError("disk full\nand more")


class Board:
    """One for all ranks, in this process."""

    def __init__(self):
        self.words, self.told = {}, threading.Condition()

    def say(self, topic, word):
        with self.told:
            self.words[topic] = word
            self.told.notify_all()

    def heard(self, topic):
        return self.words.get(topic)

    def hear(self, topic, within_s):
        with self.told:
            if not self.told.wait_for(lambda: topic in self.words, within_s):
                raise LostError("nothing was said")
            return self.words[topic]

    def drop(self, topic):
        self.words.pop(topic, None)


class Orbax:
    """Of one host. Its saves end as *ends* says: an error, or never, as where it waits for another host."""

    def __init__(self, begins=None, ends=None):
        self.begins, self.ends, self.released = begins, ends, threading.Event()

    def __call__(self, longest_s):
        return self

    def save(self, path, args, force):
        if self.begins:
            raise self.begins

    def wait_until_finished(self):
        if self.ends:
            raise self.ends
        self.released.wait()


@pytest.fixture
def gang(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_NAME", "s-0")
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(saving, "_LOOK_S", 0.01)
    board, made = Board(), []

    def make(*hosts, commit=None, **policy):
        root = (tmp_path / "checkpoints").as_uri()
        made.extend(hosts)
        return [
            Saver(root, "one", CheckpointPolicy(**policy), ("one",), rank, board, orbax, commit)
            for rank, orbax in enumerate(hosts)
        ]

    yield make
    for orbax in made:
        orbax.released.set()


def save(savers, step):
    for saver in savers:
        saver.save(step, {}, {})


def test_a_host_that_fails_releases_the_others_and_is_named(gang, caplog):
    savers = gang(Orbax(), Orbax(ends=FULL), Orbax())
    save(savers, 10)

    assert [saver.settle() for saver in savers] == [None, None, None]

    told = [line for line in caplog.messages if "could not be saved" in line]
    assert told == [
        "The checkpoint of step 10 could not be saved: disk full (host 1, slice s-0) (1 of 3 in a row). Going on."
    ] * len(savers)


def test_where_the_first_host_fails_the_others_do_not_wait_either(gang):
    savers = gang(Orbax(ends=FULL), Orbax())
    save(savers, 10)

    for saver in savers:
        with pytest.raises(
            CheckpointError,
            match=r"step 10 could not be saved: disk full \(host 1, slice s-0\) \(it was the last one\)",
        ):
            saver.settle(last=True)


def test_what_was_said_of_a_save_is_forgotten_with_the_next_one(gang):
    savers = gang(Orbax(ends=FULL), Orbax())
    for step in (10, 20):
        save(savers, step)
        for saver in savers:
            saver.settle()

    assert list(savers[0]._board.words) == ["saved 20"]


def test_a_host_that_alone_cannot_begin_ends_the_try(gang):
    # The others are in Orbax's barrier, and would meet this host's next step there.
    savers = gang(Orbax(begins=FULL), Orbax())

    with pytest.raises(CheckpointError, match=r"disk full \(the hosts are out of step\)"):
        savers[0].save(10, {}, {})


def test_where_it_is_the_bucket_another_try_is_worth_its_while(gang, monkeypatch):
    monkeypatch.setattr(files, "in_bucket", lambda uri: True)
    monkeypatch.setattr(files, "remove", lambda uri: None)
    savers = gang(Orbax(begins=OSError("503 backend error")), Orbax())

    with pytest.raises(LostError, match=r"step 10 could not be begun \(host 1, slice s-0\): 503 backend error"):
        savers[0].save(10, {}, {})


def test_where_a_bucket_makes_no_way_no_host_begins_and_all_count_it(gang, monkeypatch):
    def refuse(uri):
        raise FULL

    monkeypatch.setattr(files, "in_bucket", lambda uri: True)
    monkeypatch.setattr(files, "remove", refuse)
    # Whoever began would say that the hosts are out of step.
    savers = gang(Orbax(begins=FULL), Orbax(begins=FULL), failed_saves=3)
    for step in (10, 20):
        save(savers, step)
        assert [saver.settle() for saver in savers] == [None, None]
    save(savers, 30)

    for saver in savers:
        with pytest.raises(CheckpointError, match=r"step 30 could not be saved: disk full .*3 saves have failed one"):
            saver.settle()


def test_the_checkpoint_that_was_restored_is_the_last_good_one(gang):
    savers = gang(Orbax(ends=FULL), Orbax(), commit=Commit(5, "file:///c/5", "one"), failed_saves=1)
    save(savers, 10)

    with pytest.raises(CheckpointError, match=r"The last good one is step 5 \(file:///c/5\)"):
        savers[0].settle()
    savers[1].abandon()
