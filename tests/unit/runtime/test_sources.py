"""Files of each format: their rows are counted before they are read, and what is not as it should be is named."""

import json
import logging
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google_crc32c import value as crc32c
from PIL import Image
from pyarrow import feather, ipc

from airflow_raytpu.model.datasets import Dataset
from airflow_raytpu.model.errors import PathError, RequestError
from airflow_raytpu.runtime import buckets, files, sources
from airflow_raytpu.runtime.buckets import RefusedError, SilentError
from airflow_raytpu.runtime.listing import Listing
from airflow_raytpu.runtime.rows import Rows
from airflow_raytpu.runtime.sources import scan
from airflow_raytpu.runtime.tfrecords import _example
from tests.doubles import bucket_server
from tests.doubles.bucket_server import ALWAYS

ROOT = Path(__file__).parents[3]
FORMATS = ["a.parquet", "a.arrow", "a.tfrecord", "a.png"]


def take(source, *numbers):
    return Rows(source.files, source.columns, keep=False).take(np.array(numbers))


def columns_of(source):
    return {name: column.tolist() for name, column in take(source, *range(source.rows)).items()}


def table(first, last):
    rows = np.arange(first, last)
    return pa.table({"x": pa.array(np.stack([rows, -rows], 1).astype(np.float32).tolist()), "y": rows, "z": rows * 2})


def image(path, colour, size=(4, 3)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def masked(data):
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(record):
    header = struct.pack("<Q", len(record))
    return header + masked(header) + record + masked(record)


def example(**features):
    made = _example()()
    for name, values in features.items():
        entry = made.features.feature.add(key=name)
        kind = {int: "int64_list", float: "float_list", bytes: "bytes_list"}[type(values[0])]
        getattr(entry.value, kind).value.extend(values)
    return framed(made.SerializeToString())


# --- what is there -----------------------------------------------------------------------------------------------


def test_parquet_and_arrow_hold_the_same_rows(tmp_path):
    for folder in ("parquet", "arrow", "feather"):
        (tmp_path / folder).mkdir()
    for number, (first, last) in enumerate([(0, 5), (5, 5), (5, 12)]):
        some = table(first, last)
        pq.write_table(some, tmp_path / "parquet" / f"{number}.parquet", row_group_size=2)
        with ipc.new_file(tmp_path / "arrow" / f"{number}.arrow", some.schema) as writer:
            writer.write_table(some, max_chunksize=3)
        feather.write_feather(some, str(tmp_path / "feather" / f"{number}.feather"), chunksize=4)

    found = [scan(Dataset((tmp_path / name).as_uri())) for name in ("parquet", "arrow", "feather")]

    assert [[file.groups for file in source.files] for source in found] == [
        [(2, 2, 1), (2, 2, 2, 1)],
        [(3, 2), (3, 3, 1)],
        [(4, 1), (4, 3)],
    ]
    wanted = {"x": [[row, -row] for row in range(12)], "y": [*range(12)], "z": [*range(0, 24, 2)]}
    assert [columns_of(source) for source in found] == [wanted] * 3


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_only_the_named_columns_are_read(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    if kind == "arrow":
        feather.write_feather(table(0, 9), str(path))
    else:
        pq.write_table(table(0, 9), path)

    found = scan(Dataset(path.as_uri(), columns=["z", "y"]))

    assert {name: column.tolist() for name, column in take(found, 8, 0, 8).items()} == {
        "z": [16, 0, 16],
        "y": [8, 0, 8],
    }


def test_images_are_rows_with_the_folder_as_label(tmp_path, caplog):
    for number, (name, colour) in enumerate([("dog", "red"), ("cat", "blue"), ("cat", "lime")]):
        image(tmp_path / name / f"{number}.png", colour)
    Image.new("L", (4, 3), 7).save(tmp_path / "cat" / "grey.jpg")
    caplog.set_level(logging.INFO)

    found = scan(Dataset(tmp_path.as_uri(), columns=["label", "image", "path"]))
    rows = take(found, *range(4))

    assert rows["label"].tolist() == [0, 0, 0, 1]
    assert [path.removeprefix(tmp_path.as_uri()) for path in rows["path"]] == [
        "/cat/1.png",
        "/cat/2.png",
        "/cat/grey.jpg",
        "/dog/0.png",
    ]
    assert (rows["image"].shape, rows["image"].dtype) == ((4, 3, 4, 3), np.uint8)
    assert rows["image"][:, 0, 0].tolist() == [[0, 0, 255], [0, 255, 0], [7, 7, 7], [255, 0, 0]]
    assert "0 to 1 for cat, dog" in caplog.text
    # A path is no number, and is read where it is asked for.
    assert scan(Dataset(tmp_path.as_uri())).columns == ("image", "label")


def test_images_of_other_sizes_are_resized_or_refused(tmp_path):
    image(tmp_path / "a.png", "red")
    image(tmp_path / "b.png", "blue", size=(10, 6))

    with pytest.raises(PathError, match=r"b\.png is 6 pixels high and 10 wide; the first .* is 3 and 4"):
        take(scan(Dataset(tmp_path.as_uri())), 0, 1)
    rows = take(scan(Dataset(tmp_path.as_uri(), image_size=(2, 5))), 0, 1)

    assert rows["image"].shape == (2, 2, 5, 3)
    assert [*rows] == ["image"]
    with pytest.raises(RequestError, match="image_size is for images"):
        pq.write_table(table(0, 2), tmp_path / "a.parquet")
        scan(Dataset((tmp_path / "a.parquet").as_uri(), image_size=(2, 5)))


def test_tfrecords_are_rows_without_tensorflow(tmp_path):
    for name, numbers in {
        "a.tfrecord-00000-of-00002": range(1500),
        "a.tfrecord-00001-of-00002": range(1500, 1503),
    }.items():
        records = [example(n=[row], pair=[row / 2, 0.25], name=[b"r%d" % row]) for row in numbers]
        (tmp_path / name).write_bytes(b"".join(records))

    found = scan(Dataset(tmp_path.as_uri()))
    rows = take(found, 1502, 0, 1024, 1023)

    assert [file.groups for file in found.files] == [(1024, 476), (3,)]
    assert rows["n"].tolist() == [1502, 0, 1024, 1023]
    assert rows["pair"].tolist() == [[751, 0.25], [0, 0.25], [512, 0.25], [511.5, 0.25]]
    assert rows["name"].tolist() == [b"r1502", b"r0", b"r1024", b"r1023"]
    assert {name: column.dtype for name, column in rows.items()} == {"n": "int64", "pair": "float32", "name": object}


def test_a_record_as_tensorflow_writes_it(tmp_path):
    """Byte for byte: map entries with key 1 and value 2, numbers packed and not."""
    packed = b"\x0a\x0d\x0a\x0b\x0a\x01a\x12\x06\x1a\x04\x0a\x02\x96\x01"
    single = b"\x0a\x0c\x0a\x0a\x0a\x01a\x12\x05\x1a\x03\x08\x96\x01"
    (tmp_path / "a.tfrecord").write_bytes(framed(packed) + framed(single))

    assert columns_of(scan(Dataset(tmp_path.as_uri()))) == {"a": [150, 150]}


def test_files_come_in_order_of_their_names_and_have_a_fingerprint(tmp_path):
    for name in ("b", "a/c", "a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(table(0, 3), tmp_path / f"{name}.parquet")
    before = scan(Dataset(tmp_path.as_uri()))
    again = scan(Dataset(f"{tmp_path.as_uri()}/*.parquet", ragged="pad", columns=["y"]))
    pq.write_table(table(0, 4), tmp_path / "b.parquet")

    assert [file.name for file in before.files] == ["a.parquet", "a/c.parquet", "b.parquet"]
    assert again.fingerprint == before.fingerprint != scan(Dataset(tmp_path.as_uri())).fingerprint


PATIENCE_S = 0.03
FAR_SERVER = f"""
import json, sys, time
from tests.doubles import bucket_server

with bucket_server.serving("runs") as (address, bucket):
    at_once = bucket.meets

    def meets(call):
        trouble = at_once(call)
        # Where this takes longer than the client's patience, it makes no pause before it gives up.
        time.sleep({PATIENCE_S} * 1.3 if trouble else 0)
        return trouble

    bucket.meets = meets
    print(address, flush=True)
    for line in sys.stdin:
        bucket.troubles[:] = [bucket_server.Trouble(**each) for each in json.loads(line)]
        print("done", flush=True)
"""


@pytest.fixture(scope="module")
def far_server():
    """``gs://runs`` in a process of its own: pyarrow stops all of this one until it knows an object's length (26.0)."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", FAR_SERVER], cwd=ROOT, **pipes) as server:
        yield server, server.stdout.readline().strip()
        server.kill()


@pytest.fixture
def far_bucket(bucket, far_server, monkeypatch):
    """``gs://runs``, and what orders trouble in it, for clients that are out of patience at once."""
    server, address = far_server

    def order(*troubles):
        server.stdin.write(json.dumps(troubles) + "\n")
        server.stdin.flush()
        server.stdout.readline()
        monkeypatch.setattr(files, "ARROW_PATIENCE_S", PATIENCE_S)
        files._arrow_gcs.cache_clear()

    for name, value in bucket_server.environment(address).items():
        monkeypatch.setenv(name, value)
    buckets._client.cache_clear()
    files._arrow_gcs.cache_clear()
    yield order
    order()


def test_every_format_lies_in_a_bucket_too(tmp_path, far_bucket):
    here = tmp_path / "day 1"
    here.mkdir()
    pq.write_table(table(0, 5), here / "a.parquet", row_group_size=2)
    feather.write_feather(table(0, 5), str(here / "a.feather"))
    (here / "a.tfrecord").write_bytes(b"".join(example(y=[row]) for row in range(5)))
    for row in range(5):
        image(here / f"{row}.png", (row, 0, 0))
    for path in here.iterdir():
        files.write_bytes(f"gs://runs/in/{path.suffix[1:]}/day%201/{path.name}", path.read_bytes())

    for kind in ("parquet", "feather", "tfrecord"):
        for address in (f"gs://runs/in/{kind}/", f"gs://runs/in/{kind}/day%201/a.*"):
            assert take(scan(Dataset(address)), 4, 0)["y"].tolist() == [4, 0]
    assert take(scan(Dataset("gs://runs/in/png")), 4, 0)["image"][:, 0, 0].tolist() == [[4, 0, 0], [0, 0, 0]]
    with pytest.raises(PathError, match="There is no file at gs://runs/in/csv"):
        scan(Dataset("gs://runs/in/csv"))


# --- what cannot be read -------------------------------------------------------------------------------------------


def write_as(path):
    """Some rows in the format that *path* ends in."""
    if path.suffix == ".parquet":
        pq.write_table(table(0, 5), path, row_group_size=2)
    elif path.suffix == ".arrow":
        feather.write_feather(table(0, 5), str(path), chunksize=2)
    elif path.suffix == ".tfrecord":
        path.write_bytes(b"".join(example(y=[row], x=[0.5] * 10) for row in range(5)))
    else:
        image(path, "red", size=(64, 64))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("trouble", "kind", "said"),
    [
        ({"what": "status", "says": "the backend is asleep"}, SilentError, "the backend is asleep$"),
        ({"what": "status", "status": 403, "says": "no right to get it"}, RefusedError, "no right to get it$"),
        ({"what": "torn"}, SilentError, "(.*CURL|Retry policy exhausted|its first bytes)"),
    ],
    ids=["outage", "refusal", "cut"],
)
def test_trouble_of_a_bucket_is_not_the_file_s(tmp_path, far_bucket, name, trouble, kind, said):
    write_as(tmp_path / name)
    files.write_bytes(f"gs://runs/troubled/{name}", (tmp_path / name).read_bytes())
    counted = scan(Dataset(f"gs://runs/troubled/{name}"))
    far_bucket({**trouble, "of": "get troubled/", "times": ALWAYS})

    with pytest.raises(kind) as counting:
        scan(Dataset(f"gs://runs/troubled/{name}"))
    with pytest.raises(kind) as reading:
        take(counted, counted.rows - 1)

    for caught in (counting, reading):
        assert re.match(f"gs://runs/troubled/{name} could not be read: {said}", caught.value.cause)
        assert "google::cloud" not in caught.value.cause


@pytest.mark.parametrize(
    ("trouble", "kind", "said"),
    [
        ({"what": "status", "says": "the backend is asleep"}, SilentError, "the backend is asleep"),
        ({"what": "status", "status": 403, "says": "no right to list"}, RefusedError, "no right to list"),
    ],
    ids=["outage", "refusal"],
)
@pytest.mark.parametrize("of", ["stat", "list"])
def test_a_bucket_that_cannot_be_listed(far_bucket, of, trouble, kind, said):
    far_bucket({**trouble, "of": of, "times": ALWAYS})

    with pytest.raises(kind, match=f"^gs://runs/in/sub could not be read: {said}"):
        scan(Dataset("gs://runs/in/sub"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_in_a_bucket_is_the_author_s(tmp_path, far_bucket, name):
    uri = f"gs://runs/damaged/{name}"
    write_as(tmp_path / name)
    files.write_bytes(uri, (tmp_path / name).read_bytes())
    counted = scan(Dataset(uri))
    files.write_bytes(uri, b"this is something else")

    with pytest.raises(PathError, match=f"^{uri} (cannot be read as|is no TFRecord file)") as counting:
        scan(Dataset(uri))
    with pytest.raises(PathError, match=f"^{uri} (cannot be read as|is shorter than)") as reading:
        take(counted, counted.rows - 1)

    assert not any(isinstance(caught.value, RefusedError) for caught in (counting, reading))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("instead", ["nothing", "a folder", "a link to itself"])
def test_a_file_on_disk_that_is_not_there_any_more_is_named(tmp_path, monkeypatch, name, instead):
    write_as(tmp_path / name)
    counted = scan(Dataset(tmp_path.as_uri()))
    (tmp_path / name).unlink()
    if instead == "a folder":
        (tmp_path / name).mkdir()
    elif instead == "a link to itself":
        (tmp_path / name).symlink_to(tmp_path / name)
    # It was still there when the folder was listed.
    monkeypatch.setattr(sources, "listed", lambda uri: Listing(uri, {name: 1}, chosen=False))

    for work in (lambda: scan(Dataset(tmp_path.as_uri())), lambda: take(counted, 0)):
        said = "could not be read" if instead == "a link to itself" else "cannot be read as"
        with pytest.raises(PathError, match=f"^{tmp_path.as_uri()}/{name} {said}"):
            work()


def test_a_file_that_became_shorter_at_a_record_s_end_is_named(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(example(y=[1]) * 3)
    counted = scan(Dataset(tmp_path.as_uri()))
    (tmp_path / "a.tfrecord").write_bytes(example(y=[1]) * 2)

    with pytest.raises(PathError, match=r"a\.tfrecord is shorter than when its records were counted"):
        take(counted, 0)


# --- what should not be there --------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["nowhere", "*.parquet", "empty"])
def test_no_file_at_all(tmp_path, address):
    (tmp_path / "empty").mkdir()

    with pytest.raises(PathError, match="There is no file at"):
        scan(Dataset(f"{tmp_path.as_uri()}/{address}"))


def test_other_files_are_left_out_and_named(tmp_path, caplog):
    image(tmp_path / "a.png", "red")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "_SUCCESS").write_text("")

    assert scan(Dataset(tmp_path.as_uri())).rows == 1
    assert "1 of 2 files" in caplog.text
    assert "notes.txt" in caplog.text


def test_several_formats_need_a_word(tmp_path):
    image(tmp_path / "a.png", "red")
    image(tmp_path / "b.png", "red")
    pq.write_table(table(0, 3), tmp_path / "a.parquet")

    with pytest.raises(PathError, match="several formats: 2 of images, 1 of parquet"):
        scan(Dataset(tmp_path.as_uri()))
    assert scan(Dataset(tmp_path.as_uri(), format="parquet")).rows == 3
    with pytest.raises(PathError, match="is tfrecord"):
        scan(Dataset(tmp_path.as_uri(), format="tfrecord"))


def test_names_that_say_nothing(tmp_path):
    pq.write_table(table(0, 3), tmp_path / "part-0")

    with pytest.raises(PathError, match="known by its name, such as part-0"):
        scan(Dataset(tmp_path.as_uri()))
    assert scan(Dataset(tmp_path.as_uri(), format="parquet")).rows == 3
    assert scan(Dataset(f"{tmp_path.as_uri()}/part-*")).rows == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.parquet", "cannot be read as Parquet"),
        ("a.arrow", "cannot be read as an Arrow IPC file"),
        ("a.tfrecord", "is no TFRecord file: no record begins at byte 0"),
        ("a.png", "cannot be read as an image"),
    ],
)
@pytest.mark.parametrize("content", [b"this is something else", b"\0" * 64])
def test_something_else_under_a_known_name(tmp_path, name, message, content):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(PathError, match=rf"{name} {message}"):
        take(scan(Dataset(tmp_path.as_uri())), 0)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.png"])
def test_an_empty_file_is_no_file_of_its_kind(tmp_path, name):
    (tmp_path / name).touch()

    with pytest.raises(PathError, match=rf"{name} cannot be read"):
        scan(Dataset(tmp_path.as_uri()))


def test_an_image_that_is_none_is_named_when_it_is_read(tmp_path):
    image(tmp_path / "a.png", "red")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])

    found = scan(Dataset(tmp_path.as_uri()))
    with pytest.raises(PathError, match=r"b\.png cannot be read as an image"):
        take(found, 1)


def test_an_arrow_stream_has_no_footer(tmp_path):
    some = table(0, 3)
    with ipc.new_stream(tmp_path / "a.arrow", some.schema) as writer:
        writer.write_table(some)

    with pytest.raises(PathError, match=r"a\.arrow cannot be read as an Arrow IPC file(.|\n)*write_feather"):
        scan(Dataset(tmp_path.as_uri()))


@pytest.mark.parametrize("cut", [1, 6, 20, 40])
def test_a_record_that_is_cut_off_is_found_before_the_work_begins(tmp_path, cut):
    record = example(n=[7], x=[0.5] * 10)
    (tmp_path / "a.tfrecord").write_bytes(record * 3 + record[:cut])

    with pytest.raises(PathError, match=rf"is cut off in the record that begins at byte {len(record) * 3}"):
        scan(Dataset(tmp_path.as_uri()))


def test_a_record_that_rotted_is_found_when_it_is_read(tmp_path):
    record = bytearray(example(n=[7], x=[0.5] * 10) * 2)
    record[-10] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(record)

    with pytest.raises(PathError, match="does not fit its checksum"):
        take(scan(Dataset(tmp_path.as_uri())), 0)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"n": [1, 2]}, "Record 1 .* has 2 of int64_list in 'n', where the first record of the file has int64"),
        ({"n": [1.5]}, "Record 1 .* has 1 of float_list in 'n'"),
        ({"m": [1]}, "Record 1 .* has none in 'n'"),
    ],
)
def test_examples_that_differ_are_named(tmp_path, second, message):
    (tmp_path / "a.tfrecord").write_bytes(example(n=[1]) + example(**second))

    with pytest.raises(PathError, match=message):
        take(scan(Dataset(tmp_path.as_uri())), 0)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"x": pa.array([1.0])}, r"b\.parquet has double in the column 'x', and a\.parquet has int64"),
        ({"y": pa.array([1])}, r"b\.parquet has no column 'x'"),
        ({"x": pa.array([1]), "y": pa.array([1])}, r"b\.parquet has a column 'y' that a\.parquet has not"),
    ],
)
def test_files_that_do_not_fit_one_another(tmp_path, second, message):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table(second), tmp_path / "b.parquet")

    with pytest.raises(PathError, match=message):
        scan(Dataset(tmp_path.as_uri()))


def test_named_columns_are_enough_and_columns_may_come_in_any_order(tmp_path):
    pq.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"y": [4], "x": [3]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"y": [6], "x": [5], "z": [7]}), tmp_path / "c.parquet")

    assert columns_of(scan(Dataset(tmp_path.as_uri(), columns=["x", "y"]))) == {"x": [1, 3, 5], "y": [2, 4, 6]}
    with pytest.raises(PathError, match="has no column 'q'"):
        scan(Dataset(tmp_path.as_uri(), columns=["q"]))


def test_a_column_that_padding_needs_is_not_overwritten(tmp_path):
    pq.write_table(pa.table({"row_mask": [1]}), tmp_path / "a.parquet")

    with pytest.raises(PathError, match="'row_mask', which is what ragged='pad' adds"):
        scan(Dataset(tmp_path.as_uri(), ragged="pad"))


def test_lists_that_differ_between_groups_are_named(tmp_path):
    pq.write_table(pa.table({"x": [[1], [2], [1, 2], [3, 4]]}), tmp_path / "a.parquet", row_group_size=2)
    found = scan(Dataset(tmp_path.as_uri()))

    assert take(found, 0, 1)["x"].tolist() == [[1], [2]]
    with pytest.raises(
        PathError, match=r"'x' is not alike in all rows: int64 of shape \(1,\) and int64 of shape \(2,\)"
    ):
        take(found, 0, 3)
