"""Google Cloud Storage in memory, as most tests have it, and fake-gcs-server answer the real clients alike."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from airflow_raytpu.runtime import buckets as in_cluster
from airflow_raytpu.runtime import files
from airflow_raytpu.storage import buckets, objects
from tests.doubles import bucket_server, emulator
from tests.doubles.bucket_contents import Contents
from tests.doubles.bucket_server import Bucket, Store

BIG = bytes(range(256)) * (36 * 1024)
"""More than the client sends in one request: it goes up in parts."""


@pytest.fixture(scope="module")
def emulated() -> Iterator[emulator.Emulated]:
    with emulator.emulating("runs") as found:
        yield found


@pytest.fixture(scope="module")
def unguarded(emulated: emulator.Emulated) -> list[str]:
    """The kinds of upload whose condition the emulator passes over: what it says of them proves nothing."""
    return emulator.unguarded(emulated)


@pytest.fixture(params=["memory", "fake-gcs-server"])
def store(request: pytest.FixtureRequest) -> Store:
    return Contents("runs") if request.param == "memory" else request.getfixturevalue("emulated")


def forget_clients() -> None:
    """They keep the address that they were made with."""
    for client in (buckets._client, in_cluster._client, files._arrow_gcs):
        client.cache_clear()


@pytest.fixture
def served(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Bucket]]:
    with bucket_server.serving(store) as (address, found):
        for name, value in bucket_server.environment(address).items():
            monkeypatch.setenv(name, value)
        forget_clients()
        yield int(address.rpartition(":")[2]), found
        found.clear()
        forget_clients()


@pytest.fixture
def bucket(served: tuple[int, Bucket]) -> Bucket:
    return served[1]


def guarded(kind: str, store: Store, request: pytest.FixtureRequest) -> None:
    """Skip where the emulator does not look at the condition of such an upload."""
    if isinstance(store, emulator.Emulated) and kind in request.getfixturevalue("unguarded"):
        pytest.skip(f"this fake-gcs-server lets a {kind} upload with ifGenerationMatch=0 replace an object")


@pytest.mark.parametrize("kind", ["media", "multipart", "resumable"])
def test_a_condition_is_kept_in_every_kind_of_upload(
    kind: str, served: tuple[int, Bucket], store: Store, request: pytest.FixtureRequest
) -> None:
    guarded(kind, store, request)
    port, bucket = served

    answers = [emulator.upload(port, "runs", kind, "x", data, ifGenerationMatch="0").status for data in (b"1", b"2")]

    assert answers == [200, 412]
    assert dict(bucket.held) == {"x": b"1"}


@pytest.mark.parametrize(("kind", "size"), [("multipart", 100), ("resumable", len(BIG))])
def test_of_two_that_write_one_object_at_a_time_one_wins(
    kind: str, size: int, bucket: Bucket, store: Store, request: pytest.FixtureRequest
) -> None:
    guarded(kind, store, request)
    words = [bytes([number]) * size for number in range(4)]
    won: list[bytes] = []
    ready = threading.Barrier(len(words))

    def write(number: int) -> None:
        word = words[number]
        ready.wait()
        # As Airflow's side does it, and as the cluster does.
        if (
            objects.write_bytes("gs://runs/run/commit", word, if_absent=True)
            if number % 2
            else in_cluster.add("runs/run/commit", word)
        ):
            won.append(word)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(len(words))]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert len(won) == 1
    assert bucket.held["run/commit"] == won[0]


@pytest.mark.parametrize("name", ["plain", "with space", "100%", "a#b", "a?b", "ü/文字"])
def test_a_hostile_name_comes_back_on_either_side(name: str, bucket: Bucket) -> None:
    uri = f"gs://runs/{quote(name)}"
    files.write_json(uri, [name])

    assert list(bucket.held) == [name]
    assert files.read_json(uri) == [name] == objects.read_json(objects.normalise(uri))
    assert files.sizes("gs://runs") == {name: len(bucket.held[name])}
    files.remove(uri)
    assert files.read_json(uri) is None
    assert len(bucket.held) == 0


def test_folders_are_what_has_objects_below(bucket: Bucket) -> None:
    files.make_folder("gs://runs/c")
    files.make_folder("gs://runs/c")
    bucket.held |= dict.fromkeys(["c/5/", "c/5/a", "c/5/b/c", "c/10/a", "c/file", "c/empty/", "cc/x"], b"1")

    assert files.children("gs://runs/c") == ["10", "5", "empty", "file"]
    assert files.sizes("gs://runs/c/5") == {"a": 1, "b/c": 1}
    files.remove("gs://runs/c/5")
    files.remove("gs://runs/c/empty")
    assert sorted(bucket.held) == ["c/", "c/10/a", "c/file", "cc/x"]
    filesystem, path = files.locate("gs://runs/c")
    filesystem.create_dir(f"{path}/checkpoint_1/more")
    assert "checkpoint_1" in files.children("gs://runs/c")


@pytest.mark.parametrize("what", ["status", "reset"])
def test_what_is_big_goes_up_in_parts_through_trouble(what: str, bucket: Bucket) -> None:
    bucket.trouble(what, "part", times=2)

    files.write_bytes("gs://runs/big", BIG)

    assert len(bucket.met) == 2
    assert files.read_bytes("gs://runs/big") == BIG == objects.read_bytes("gs://runs/big")
