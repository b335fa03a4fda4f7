"""Google Cloud Storage: the real client against a bucket in memory."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import BackendUnreachable, PathError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.storage import attempts, buckets, objects
from tests.doubles import bucket_server


@pytest.fixture(scope="module")
def server():
    with bucket_server.serving() as (address, bucket):
        yield address, bucket


@pytest.fixture
def bucket(server, monkeypatch):
    address, bucket = server
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    buckets._client.cache_clear()
    bucket.clear()
    yield bucket
    buckets._client.cache_clear()


@pytest.mark.parametrize("name", ["plain", "with space", "100%", "a#b", "a?b", "ü/文字"])
def test_a_hostile_name_comes_back(name, bucket):
    uri = objects.normalise("gs://b/" + quote(name))
    objects.write_json(uri, [name])
    assert list(bucket.held) == [name]
    assert objects.read_json(uri) == [name]
    assert objects.size(uri) == len(bucket.held[name])
    assert objects.list_prefix("gs://b") == [uri]


def test_what_is_missing_is_none(bucket):
    assert objects.read_bytes("gs://b/x") is None
    assert objects.size("gs://b/x") is None


def test_an_object_can_be_left_alone_where_it_is_there(bucket):
    assert objects.write_bytes("gs://b/x", b"1", if_absent=True)
    assert not objects.write_bytes("gs://b/x", b"2", if_absent=True)
    assert bucket.held == {"x": b"1"}
    assert objects.write_bytes("gs://b/x", b"2")
    assert bucket.held == {"x": b"2"}


@pytest.mark.parametrize("times", [1, 3])
def test_a_write_whose_answer_was_lost_is_not_taken_for_somebody_elses(times, bucket, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    bucket.trouble("lost", "put x", times=times)
    assert objects.write_bytes("gs://b/x", b"1", if_absent=True)
    assert len(bucket.met) == times
    assert not objects.write_bytes("gs://b/x", b"1", if_absent=True), "the same words of another writer are not ours"


def test_a_refusal_whose_answer_was_lost_stays_a_refusal(bucket, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    objects.write_bytes("gs://b/x", b"1")
    bucket.trouble("lost", "put x")
    assert not objects.write_bytes("gs://b/x", b"1", if_absent=True)
    assert bucket.met == ["lost put x"]
    assert bucket.held == {"x": b"1"}


def test_one_caller_is_the_first_to_tell_though_its_answer_was_lost(bucket, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    request = RayRequest(
        identity=Identity(deployment="d", dag_id="digits", task_id="train", run_id="r"),
        kind=Kind.TRAIN,
        slice="v6e:4x4",
        storage="gs://b/digits",
        limits=Deadlines().since(1000.0),
    )
    bucket.trouble("lost", r"put .*\.told")
    assert [attempts.first_to_tell(request) for _ in range(3)] == [True, False, False]
    assert len(bucket.met) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_short_trouble_is_waited_out_by_the_client(status, bucket, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    bucket.refuse = [status, status]
    objects.write_bytes("gs://b/x", b"1")
    bucket.refuse = [status, status]
    assert objects.read_bytes("gs://b/x") == b"1"


@pytest.mark.parametrize("what", ["reset", "lost", "torn"])
def test_a_connection_that_breaks_is_waited_out_by_the_client(what, bucket, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    bucket.trouble(what, times=2)
    objects.write_bytes("gs://b/x", b"1234")
    bucket.trouble(what, times=2)
    assert objects.read_bytes("gs://b/x") == b"1234"
    bucket.trouble(what, times=2)
    assert objects.list_prefix("gs://b") == ["gs://b/x"]
    assert len(bucket.met) == 6


def test_what_is_forbidden_is_not_called_transient(bucket):
    bucket.refuse = [403]
    with pytest.raises(PathError, match=r"refused[\s\S]*Storage Object User"):
        objects.write_bytes("gs://b/x", b"1")


def test_a_bucket_that_is_not_there_is_named(bucket):
    with pytest.raises(PathError, match="there is no bucket other"):
        objects.list_prefix("gs://other/x")
    with pytest.raises(PathError, match="there is no bucket other"):
        objects.write_bytes("gs://other/x", b"")


def test_other_trouble_may_pass(bucket):
    bucket.refuse = [400]
    with pytest.raises(BackendUnreachable, match="gs://b/x could not be read"):
        objects.read_bytes("gs://b/x")


def test_writable_is_proved_by_writing(bucket):
    objects.check_writable("gs://b/runs")
    assert bucket.held == {"runs/.write-check": b""}
    bucket.refuse = [403]
    with pytest.raises(PathError, match="refused"):
        objects.check_writable("gs://b/runs")


def test_an_input_is_an_object_a_prefix_with_objects_or_a_glob(bucket):
    bucket.held |= {"in/train/a.parquet": b"x", "in/training": b"x"}
    for good in ("in/train", "in/train/", "in/train/a.parquet", "in/train/*.parquet"):
        objects.check_readable(f"gs://b/{good}")
    for bad in ("in/tr", "in/*.csv"):
        with pytest.raises(PathError, match="does not exist"):
            objects.check_readable(f"gs://b/{bad}")
