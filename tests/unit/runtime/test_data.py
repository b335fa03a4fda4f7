"""Batches by number: the step is the position, on any number of hosts."""

import gc
import itertools
import logging
import re
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_raytpu.model.datasets import Dataset
from airflow_raytpu.model.errors import BatchSizeError, PathError, RequestError
from airflow_raytpu.model.policies import CheckpointPolicy
from airflow_raytpu.runtime import data
from airflow_raytpu.runtime.checkpoints import Session, opened
from airflow_raytpu.runtime.commits import Commit, committed, read, record
from airflow_raytpu.runtime.feed import Feed
from airflow_raytpu.runtime.rows import Rows
from airflow_raytpu.runtime.sources import scan


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """97 rows in files and row groups of odd sizes, one file without any."""
    place, first = tmp_path_factory.mktemp("rows"), 0
    for name, count, group in [("a", 13, 5), ("b", 1, 1), ("c", 0, 1), ("d", 50, 7), ("e", 33, 100)]:
        rows = np.arange(first, first + count)
        table = pa.table({"id": rows, "pair": [[row, -row] for row in rows.tolist()]}, SCHEMA)
        pq.write_table(table, place / f"{name}.parquet", row_group_size=group)
        first += count
    return place.as_uri()


SCHEMA = pa.schema({"id": pa.int64(), "pair": pa.list_(pa.int64())})
ROWS = 97


def feed(folder, rank=0, hosts=1, restored=None, **stated):
    return Feed({"train": scan(Dataset(folder, **stated))}, rank, hosts, restored or {})


def run(folder, hosts=1, ragged="drop", **asked):
    """The ids of each batch over all hosts, in their order; -1 for a copy."""
    parts = []
    for rank in range(hosts):
        with data.opened(feed(folder, rank, hosts, ragged=ragged)):
            parts.append(list(data.batches("train", **asked)))
    found = []
    for batch in zip(*parts, strict=True):
        whole = {name: np.concatenate([part[name] for part in batch]) for name in batch[0]}
        assert (whole["pair"] == np.stack([whole["id"], -whole["id"]], 1)).all()
        found.append(np.where(whole.get("row_mask", True), whole["id"], -1).tolist())
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(
    share=st.integers(1, 7),
    hosts=st.sampled_from([1, 2, 4]),
    ragged=st.sampled_from(["drop", "pad"]),
    seed=st.none() | st.integers(0, 2),
    start=st.integers(0, 9),
)
def test_whoever_begins_where_sees_what_an_uninterrupted_run_on_one_host_sees(
    folder, share, hosts, ragged, seed, start
):
    asked = {"global_batch_size": 4 * share, "shuffle_seed": seed, "ragged": ragged}
    whole = run(folder, epochs=2, **asked)

    assert run(folder, hosts, epochs=2, start=start, **asked) == whole[start:]
    for epoch in (whole[: len(whole) // 2], whole[len(whole) // 2 :]):
        ids = [row for batch in epoch for row in batch if row >= 0]
        assert len(ids) == len(set(ids)) == (ROWS if ragged == "pad" else ROWS - ROWS % (4 * share))


def test_it_ends_where_it_is_told_or_never(folder):
    with data.opened(feed(folder)):
        assert len(list(data.batches("train", global_batch_size=10, start=2, stop=5))) == 3
        assert len(list(data.batches("train", global_batch_size=10, epochs=3))) == 27
        assert len(list(data.batches("train", global_batch_size=10, epochs=3, stop=4))) == 4
        assert list(data.batches("train", global_batch_size=10, start=9, stop=5)) == []
        endless = data.batches("train", global_batch_size=10, start=10**12)
        assert len(list(itertools.islice(endless, 30))) == 30


@pytest.fixture
def too_large(monkeypatch):
    """As if the rows did not fit into memory."""
    monkeypatch.setattr(data, "_LANES_BYTES", 300)


def test_no_more_is_held_than_a_batch_needs(folder):
    source = scan(Dataset(folder))
    rows, most = Rows(source.files, source.columns, keep=False), 0
    for number in range(0, ROWS, 4):
        rows.take(np.arange(number, min(number + 4, ROWS)))
        most = max(most, len(rows._held))
    assert 1 < most <= 4


@pytest.mark.parametrize(
    ("seed", "epochs", "large", "times"),
    [(None, 1, True, 1), (None, 3, True, 3), (0, 3, False, 1), (0, 3, True, 3 * 3)],
)
def test_what_fits_is_read_once_and_what_does_not_again_in_each_epoch(
    folder, monkeypatch, request, seed, epochs, large, times
):
    if large:
        request.getfixturevalue("too_large")
    found = []
    before = Rows._read

    def noted(self, group):
        found.append(group)
        return before(self, group)

    monkeypatch.setattr(Rows, "_read", noted)
    with data.opened(feed(folder)):
        list(data.batches("train", global_batch_size=8, shuffle_seed=seed, epochs=epochs))
    counts = [found.count(group) for group in set(found)]
    assert len(counts) == 13
    assert max(counts) <= times


def test_a_shuffle_of_what_does_not_fit_is_as_complete(folder, too_large):
    test_whoever_begins_where_sees_what_an_uninterrupted_run_on_one_host_sees(folder)


def test_leaving_early_leaves_no_thread(folder):
    with data.opened(feed(folder)) as opened_feed:
        for _ in data.batches("train", global_batch_size=8):
            assert opened_feed.at == {"train": 1}
            break
        gc.collect()
        assert opened_feed.at == {}
    for thread in threading.enumerate():
        if thread.name.startswith("batches of"):
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("ragged", "asked", "error", "message"),
    [
        ("drop", {"global_batch_size": 98}, BatchSizeError, "has 97 rows and fills no batch of 98"),
        ("drop", {"global_batch_size": 0}, BatchSizeError, "global_batch_size is 0"),
        ("drop", {"global_batch_size": 9}, BatchSizeError, "9 rows does not divide over 2 hosts"),
        ("raise", {"global_batch_size": 10}, BatchSizeError, "97 rows of 'train' make 9 batches of 10, and 7 more"),
        ("drop", {"global_batch_size": 10, "start": -1}, RequestError, "start=-1"),
        ("drop", {"global_batch_size": 10, "shuffle_seed": -1}, RequestError, "shuffle_seed=-1"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_asked_for(folder, ragged, asked, error, message):
    with data.opened(feed(folder, 0, 2, ragged=ragged)), pytest.raises(error, match=message):
        data.batches("train", **asked)


def test_a_dataset_that_is_not_there(folder):
    with data.opened(feed(folder)), pytest.raises(RequestError, match="no dataset 'test' here, but 'train'"):
        data.batches("test", global_batch_size=1)
    with pytest.raises(RequestError, match="but none"):
        data.batches("train", global_batch_size=1)


def test_what_goes_wrong_beside_the_loop_is_raised_in_it(tmp_path):
    pq.write_table(pa.table({"x": [[1], [2], [3, 4], [5, 6]]}), tmp_path / "a.parquet", row_group_size=2)
    with data.opened(feed(tmp_path.as_uri())):
        found = data.batches("train", global_batch_size=2)
        assert next(found)["x"].tolist() == [[1], [2]]
        assert next(found)["x"].tolist() == [[3, 4], [5, 6]]
        with pytest.raises(PathError, match="'x' is not alike"):
            list(data.batches("train", global_batch_size=4))


# --- what is told --------------------------------------------------------------------------------------------------


def test_the_log_and_the_result_say_what_becomes_of_the_rows(folder, caplog):
    caplog.set_level(logging.INFO)
    for ragged, spare in (("drop", "dropped_per_epoch"), ("pad", "padded_per_epoch")):
        with data.opened(feed(folder, ragged=ragged)) as opened_feed:
            data.batches("train", global_batch_size=10)
        count = {"drop": 7, "pad": 3}[ragged]
        per_epoch = {"drop": 9, "pad": 10}[ragged]
        assert opened_feed.used == {
            "train": {"rows": 97, "global_batch_size": 10, "batches_per_epoch": per_epoch, spare: count}
        }
        assert f"{count} rows an epoch are {spare.partition('_')[0]}" in caplog.text
    caplog.clear()
    with data.opened(feed(folder, rank=1, hosts=2)):
        data.batches("train", global_batch_size=10)
    assert not caplog.text
    # An evaluation goes through its data many times, and is told of once.
    with data.opened(feed(folder)):
        for _ in range(3):
            data.batches("train", global_batch_size=10, epochs=1)
    assert len(caplog.records) == 1


def position(folder, after, **asked):
    """Where the data stands in the loop's body, after so many batches."""
    with data.opened(feed(folder)) as opened_feed:
        for _ in itertools.islice(data.batches("train", **asked), after):
            stood = opened_feed.position()
    return stood


def test_a_commit_says_where_the_data_stood(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("airflow_raytpu.runtime.checkpoints._report", lambda commit: None)
    root = (tmp_path / "checkpoints").as_uri()
    with data.opened(feed(folder)) as opened_feed:
        session = Session(
            root=root,
            request="one",
            policy=CheckpointPolicy(every_steps=5, keep=9),
            lineage=("one",),
            restore=None,
            total=0,
            rank=0,
            tell=lambda news: None,
            position=opened_feed.position,
        )
        with opened(session):
            for step, _ in enumerate(data.batches("train", global_batch_size=10, shuffle_seed=5, stop=12), 1):
                session.after(step, {"x": np.zeros(2)}, {})
            session.finish()

    stood = {commit.step: commit.data["train"] for commit in committed(root, ["one"])}
    fingerprint = scan(Dataset(folder)).fingerprint
    assert stood[10] == {
        "next_batch": 10,
        "rows_seen": 100,
        "global_batch_size": 10,
        "shuffle_seed": 5,
        "rows": 97,
        "files": fingerprint,
    }
    # The very last one, which is saved when the loop has left its batches.
    assert stood[12]["next_batch"] == 12


def test_a_record_without_the_data_is_read_as_before(tmp_path):
    uri = (tmp_path / "7").as_uri()
    record(Commit(7, uri, "one"))
    path = tmp_path / "7" / "raytpu-commit.json"
    path.write_text(path.read_text().replace(', "data": {}', ""))

    assert '"data"' not in path.read_text()
    assert read(uri) == Commit(7, uri, "one")


@pytest.mark.parametrize(
    ("changes", "start", "told"),
    [
        ({}, 4, ""),
        ({}, 3, "begins at batch 3 of 'train' and stood at batch 4 .* between is seen again"),
        ({}, 9, "begins at batch 9 of 'train' and stood at batch 4 .* between is never seen"),
        ({"global_batch_size": 20}, 4, "is 20 and was 10: the checkpoint has seen 40 rows, .* goes on after 80"),
        ({"shuffle_seed": 2}, 4, "shuffle_seed of 'train' is 2 and was 1: rows may be seen twice or missed"),
        ({"files": ["a", "e"]}, 4, r"files of 'train' are not those .* \(97 rows then, 46 now\)"),
    ],
)
def test_going_on_otherwise_is_told_with_what_follows(folder, tmp_path, caplog, changes, start, told):
    asked = {"global_batch_size": 10, "shuffle_seed": 1}
    stood = position(folder, 4, **asked)
    files = changes.pop("files", None)
    if files:
        folder = f"{folder}/[{''.join(files)}].parquet"
    caplog.clear()

    with data.opened(feed(folder, restored=stood)):
        data.batches("train", **{**asked, **changes}, start=start)

    warnings = [entry.message for entry in caplog.records if entry.levelno == logging.WARNING]
    if told:
        (warning,) = warnings
        assert re.search(told, warning)
    else:
        assert warnings == []


# --- global arrays -------------------------------------------------------------------------------------------------


def test_with_a_sharding_batches_are_global_arrays(folder, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((1, 1), ("data", "model"), devices=jax.devices()[:1])
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    with data.opened(feed(folder, ragged="pad")):
        *_, last = data.batches("train", global_batch_size=10, epochs=1, sharding=sharding)

    assert {name: (column.shape, str(column.dtype)) for name, column in last.items()} == {
        "id": ((10,), "int32"),
        "pair": ((10, 2), "int32"),
        "row_mask": ((10,), "bool"),
    }
    assert last["pair"].sharding == sharding
    assert last["id"].tolist() == [*range(90, 97), 96, 96, 96]
    assert last["row_mask"].tolist() == [True] * 7 + [False] * 3


def test_what_is_no_number_stays_off_the_devices(write_rows, monkeypatch, caplog):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    import jax

    caplog.set_level(logging.INFO)
    asked = {"global_batch_size": 4, "sharding": jax.sharding.SingleDeviceSharding(jax.devices()[0])}
    with data.opened(feed(write_rows(8))):
        assert {*next(data.batches("train", **asked))} == {"value", "pair"}
    assert "as they are no numbers: id" in caplog.text
    with data.opened(feed(write_rows(8), columns=["id"])), pytest.raises(RequestError, match="no column of numbers"):
        data.batches("train", **asked)


class Parts:
    """A sharding of which this host has some rows."""

    def __init__(self, *parts):
        self.parts = parts

    def addressable_devices_indices_map(self, shape):
        return dict(enumerate((part,) for part in self.parts))


@pytest.mark.parametrize(
    ("parts", "places"),
    [
        # Two of four hosts share the same rows, as they do where a model lies on both.
        ([slice(8, 16, None), slice(8, 16, None)], (8, 16)),
        ([slice(None, None, None)], (0, 16)),
        ([slice(0, 4, None), slice(12, None, None)], (0, 16)),
    ],
)
def test_a_host_reads_the_rows_that_lie_on_its_devices(parts, places):
    first, last, _ = data._places(Feed({}, 3, 4), 16, Parts(*parts))

    assert (first, last) == places
