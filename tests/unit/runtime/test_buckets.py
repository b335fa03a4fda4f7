"""Google Cloud Storage as the cluster sees it: the real clients against a server that misbehaves."""

import json
import pickle
from datetime import timedelta
from urllib.parse import quote

import pytest

from airflow_raytpu.model.errors import BackendUnreachable, PathError
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.runtime import buckets, files
from airflow_raytpu.runtime.buckets import RefusedError, SilentError
from airflow_raytpu.runtime.outbox import Outbox
from tests.doubles.bucket_server import ALWAYS

BIG = bytes(range(256)) * (36 * 1024)
"""More than the client sends in one request: it goes up in parts."""

PASSING = [
    *[("status", {"status": status}) for status in (408, 429, 500, 502, 503, 504)],
    *[(what, {}) for what in ("reset", "lost", "torn", "half")],
]


@pytest.fixture
def impatient(bucket, monkeypatch):
    """As *bucket*, for clients that give up at once."""
    monkeypatch.setattr(buckets, "PATIENCE_S", 0.2)
    monkeypatch.setattr(buckets, "ANSWER_S", 0.1)
    return bucket


@pytest.mark.parametrize("name", ["plain", "with space", "100%", "a#b", "a?b", "ü/文字"])
def test_a_hostile_name_comes_back(name, bucket):
    uri = f"gs://runs/{quote(name)}"
    files.write_json(uri, [name])

    assert list(bucket.held) == [name]
    assert files.read_json(uri) == [name]
    assert files.native(uri) == f"gs://runs/{name}"
    assert files.sizes("gs://runs") == {name: len(bucket.held[name])}
    files.remove(uri)
    assert bucket.held == {}


@pytest.mark.parametrize(("what", "more"), PASSING)
def test_trouble_that_passes_is_waited_out(what, more, bucket):
    def troubled(work, *arguments):
        bucket.troubles.clear()
        bucket.trouble(what, times=2, **more)
        found = work(*arguments)
        assert len(bucket.met) == 2, bucket.calls
        bucket.met.clear()
        return found

    troubled(files.write_bytes, "gs://runs/a/x", b"12345")
    troubled(files.write_bytes, "gs://runs/a/big", BIG)
    assert bucket.held == {"a/x": b"12345", "a/big": BIG}
    assert troubled(files.read_bytes, "gs://runs/a/x") == b"12345"
    assert troubled(files.children, "gs://runs/a") == ["big", "x"]
    assert troubled(files.sizes, "gs://runs/a") == {"big": len(BIG), "x": 5}
    troubled(files.remove, "gs://runs/a")
    assert bucket.held == {}


@pytest.mark.parametrize("what", ["half", "lost", "reset"])
def test_an_upload_that_breaks_off_in_a_part_is_gone_on_with(what, bucket):
    bucket.trouble(what, "part", times=2)

    files.write_bytes("gs://runs/big", BIG)

    assert bucket.held == {"big": BIG}
    assert len(bucket.met) == 2


@pytest.mark.parametrize(("what", "more"), [("status", {"status": 503}), ("reset", {}), ("hang", {})])
def test_trouble_that_does_not_pass_ends_with_how_long_it_was_asked(what, more, impatient):
    calls = {
        "written": lambda: files.write_bytes("gs://runs/x", b"1"),
        "read": lambda: files.read_bytes("gs://runs/x"),
        "listed": lambda: files.sizes("gs://runs/x"),
        "removed": lambda: files.remove("gs://runs/x"),
    }
    impatient.trouble(what, times=ALWAYS, **more)

    for done, call in calls.items():
        with pytest.raises(SilentError) as caught:
            call()
        assert isinstance(caught.value, (BackendUnreachable, OSError))
        assert caught.value.cause.startswith(f"gs://runs/x could not be {done}, though asked for up to 0 s: ")
        assert "try again" in caught.value.lever
    # Nothing was left behind, and nothing hangs on.
    assert impatient.held == {}


def test_a_server_that_says_nothing_is_asked_again(bucket, monkeypatch):
    monkeypatch.setattr(buckets, "ANSWER_S", 0.1)
    # A name of its own: what the last test gave up may reach the server as late as now.
    bucket.trouble("hang", "put silent", times=2)

    files.write_bytes("gs://runs/silent", b"1")

    assert bucket.held["silent"] == b"1"
    assert bucket.met == ["hang put silent", "hang put silent"]


def test_what_is_refused_is_not_asked_again_and_names_who_may_grant_it(bucket):
    refusal = "svc does not have storage.objects.create access to the Google Cloud Storage object."
    bucket.trouble("status", status=403, times=ALWAYS, says=refusal)

    with pytest.raises(RefusedError, match=refusal) as caught:
        files.write_bytes("gs://runs/x", b"1")

    assert isinstance(caught.value, PathError)
    assert caught.value.lever == "Grant the service account of the Ray pods Storage Object User on the bucket."
    assert bucket.calls.count("put x") == 1
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.cause, again.lever) == (caught.value.cause, caught.value.lever)


def test_a_bucket_that_is_not_there_is_named(bucket):
    for call in (files.make_folder, files.children, files.sizes, files.remove):
        with pytest.raises(RefusedError, match="there is no bucket other"):
            call("gs://other/x")


def test_folders_are_what_has_objects_below(bucket):
    bucket.store.page = 2
    bucket.held |= dict.fromkeys(["c/", "c/5/", "c/5/a", "c/5/b/c", "c/10/a", "c/file", "c/empty/", "cc/x"], b"1")

    assert files.children("gs://runs/c") == ["10", "5", "empty", "file"]
    assert files.sizes("gs://runs/c/5") == {"a": 1, "b/c": 1}
    assert files.children("gs://runs/none") == []
    assert files.sizes("gs://runs/none") == {}
    files.remove("gs://runs/c/5")
    files.remove("gs://runs/c/none")
    files.remove("gs://runs/c/empty")
    assert sorted(bucket.held) == ["c/", "c/10/a", "c/file", "cc/x"]


def test_a_folder_that_is_marked_is_marked_once(bucket):
    files.make_folder("gs://runs/c")
    files.make_folder("gs://runs/c")

    assert bucket.held == {"c/": b""}
    assert files.children("gs://runs/c") == []


def test_ray_makes_folders_with_no_right_to_see_the_bucket(bucket):
    files.make_folder("gs://runs/a%20run/checkpoints")
    filesystem, path = files.locate("gs://runs/a%20run/checkpoints")

    filesystem.create_dir(f"{path}/checkpoint_1/more")
    with filesystem.open_output_stream(f"{path}/.marker"):
        pass

    assert path == "runs/a run/checkpoints"
    assert "a run/checkpoints/.marker" in bucket.held
    assert files.children("gs://runs/a%20run/checkpoints") == [".marker", "checkpoint_1"]


def test_inputs_are_read_through_trouble_for_a_limited_time(bucket):
    bucket.held["in/a"] = b"123"
    bucket.trouble("status", "get", status=503)
    filesystem, path = files.locate("gs://runs/in/a")

    # As a stream: pyarrow stops the whole process, this server too, while it reads somewhere in a file (26.0).
    with filesystem.open_input_stream(path) as stream:
        assert stream.read() == b"123"
    assert bucket.met == ["status get in/a"]
    # Not Arrow's own 15 minutes, in a worker too.
    sent = pickle.loads(pickle.dumps(filesystem))
    assert sent.__reduce__()[1][0]["retry_time_limit"] == timedelta(seconds=files.ARROW_PATIENCE_S)


def test_orbax_waits_for_a_silent_server_no_longer_and_believes_no_list(bucket):
    import fsspec

    files.native("gs://runs/x")
    found = fsspec.filesystem("gcs", skip_instance_cache=True)

    assert found.requests_timeout.sock_read == buckets.ANSWER_S
    assert not found.dircache.use_listings_cache


def test_progress_that_cannot_be_written_is_news_and_the_result_is_not(impatient, make_request, caplog, monkeypatch):
    monkeypatch.setattr("airflow_raytpu.runtime.outbox.time.sleep", lambda _: None)
    # Google takes one write a second to the same object.
    outbox = Outbox(make_request(storage="gs://runs/a%20run"))
    impatient.trouble("status", "put .*progress", status=429, times=ALWAYS)
    impatient.trouble("lost", "put .*result", times=2)

    outbox.tell(phase="training")
    outbox.finish(Outcome(request=outbox.latest.request, value={"step": 3}))

    (written,) = impatient.held
    assert json.loads(impatient.held[written])["value"] == {"step": 3}
    assert [line for line in caplog.messages if line.startswith("Progress could not be written: gs://runs/a run/")]
