"""Files by URI: whole or not at all."""

import pytest

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.runtime import files


def test_what_is_written_is_read(tmp_path):
    uri = (tmp_path / "a place" / "x.json").as_uri()

    files.write_json(uri, {"a": 1})
    files.write_json(uri, {"a": 2})

    assert files.read_json(uri) == {"a": 2}
    assert [path.name for path in (tmp_path / "a place").iterdir()] == ["x.json"]


def test_nothing_there_is_none(tmp_path):
    assert files.read_bytes(tmp_path.as_uri() + "/none") is None
    assert files.read_json(tmp_path.as_uri() + "/none") is None
    assert files.children(tmp_path.as_uri() + "/none") == []
    files.remove(tmp_path.as_uri() + "/none")


def test_uris_are_percent_encoded(tmp_path):
    uri = (tmp_path / "50% of it").as_uri()
    files.write_bytes(uri, b"x")

    assert "%20" in uri
    assert files.native(uri) == str(tmp_path / "50% of it")
    assert files.children(tmp_path.as_uri()) == ["50% of it"]
    files.remove(uri)
    assert files.children(tmp_path.as_uri()) == []


@pytest.mark.parametrize("uri", ["relative/path", "http://host/path", "gs://", "s3://b/x"])
def test_other_places_are_refused(uri):
    with pytest.raises(PathError, match="names no place"):
        files.locate(uri)
