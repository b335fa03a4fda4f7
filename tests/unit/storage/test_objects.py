"""Objects on disk, and the one form of an address."""

from __future__ import annotations

import os

import pytest

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.storage import objects

HOSTILE = [
    "with space",
    "100%",
    "100%25",
    "a#b",
    "a?b",
    "üñï-文字",
    "a=b+c@d,e~f",
    "semi;colon&amp",
    "'quote\"",
    "[glob]*",
]


@pytest.fixture
def root(tmp_path):
    return f"file://{tmp_path}"


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("/a/b", "file:///a/b"),
        ("/a b/100%", "file:///a%20b/100%25"),
        ("/a%20b", "file:///a%2520b"),
        ("file:///a b", "file:///a%20b"),
        ("file:///a%20b", "file:///a%20b"),
        ("file://localhost/a", "file:///a"),
        ("gs://bucket", "gs://bucket"),
        ("gs://bucket/a b#c", "gs://bucket/a%20b%23c"),
    ],
)
def test_an_address_has_one_form(given, canonical):
    assert objects.normalise(given) == canonical
    assert objects.normalise(canonical) == canonical


@pytest.mark.parametrize("wrong", ["s3://bucket/a", "relative/path", "file://relative/path", "gs:///a", "", "gs://", 7])
def test_any_other_address_is_refused_with_the_two_that_work(wrong):
    with pytest.raises(PathError, match=r"gs://bucket/path.*file:///absolute/path") as caught:
        objects.normalise(wrong)
    assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_comes_back_and_pyarrow_reads_the_same_file(name, tmp_path):
    uri = objects.normalise(str(tmp_path / name / "x.json"))
    objects.write_json(uri, {"name": name})
    assert objects.read_json(uri) == {"name": name}
    assert (tmp_path / name / "x.json").is_file()
    assert objects.list_prefix(objects.normalise(str(tmp_path / name))) == [uri]
    from pyarrow import fs

    system, path = fs.FileSystem.from_uri(uri)
    assert system.open_input_stream(path).read() == objects.read_bytes(uri)


def test_what_is_missing_is_none(root):
    assert objects.read_bytes(f"{root}/nothing") is None
    assert objects.read_json(f"{root}/nothing/below.json") is None
    assert objects.size(f"{root}/nothing") is None
    assert not objects.exists(root), "a folder is not an object"
    assert objects.list_prefix(f"{root}/nothing") == []


def test_what_is_not_json_is_an_error(root):
    objects.write_bytes(f"{root}/x.json", b"{torn")
    with pytest.raises(PathError, match="does not hold JSON"):
        objects.read_json(f"{root}/x.json")


def test_an_object_can_be_left_alone_where_it_is_there(root):
    assert objects.write_bytes(f"{root}/x", b"first", if_absent=True)
    assert not objects.write_bytes(f"{root}/x", b"second", if_absent=True)
    assert objects.read_bytes(f"{root}/x") == b"first"
    assert objects.write_bytes(f"{root}/x", b"second")
    assert objects.read_bytes(f"{root}/x") == b"second"


def test_a_write_that_fails_leaves_the_old_object_and_no_draft(root, tmp_path, monkeypatch):
    objects.write_bytes(f"{root}/x", b"old")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(Exception, match="could not be written: No space left on device"):
        objects.write_bytes(f"{root}/x", b"new")
    assert objects.read_bytes(f"{root}/x") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_can_be_written_is_made_and_left_empty(root, tmp_path):
    objects.check_writable(f"{root}/a/b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_folder_that_cannot_be_written_gives_the_systems_reason(root, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PathError, match=r"file/below cannot be written: Not a directory\.\n.*storage_path"):
        objects.check_writable(f"{root}/file/below")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_somebody_else_gives_permission_denied(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PathError, match="Permission denied"):
        objects.check_writable(f"file://{tmp_path}/x")
    tmp_path.chmod(0o700)


def test_an_input_may_be_a_file_a_folder_or_a_glob(root, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").write_text("x")
    for good in ("in", "in/", "in/a.parquet", "in/*.parquet", "**/*.parquet"):
        objects.check_readable(f"{root}/{good}")


def test_a_missing_input_names_what_is_there_instead(root, tmp_path):
    (tmp_path / "digits").mkdir()
    for name in ("test", "train"):
        (tmp_path / "digits" / name).mkdir()
    with pytest.raises(PathError, match=r"digits/trian does not exist\.\n.*digits is there and holds test, train\."):
        objects.check_readable(f"{root}/digits/trian")
    with pytest.raises(PathError, match="does not exist"):
        objects.check_readable(f"{root}/digits/*.parquet")
    with pytest.raises(PathError, match="is empty"):
        objects.check_readable(f"{root}/digits/train")
