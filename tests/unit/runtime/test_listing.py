"""What Arrow raises, told apart: trouble that may pass, a refusal, a disk, a file that is not what it should be."""

import pyarrow as pa
import pytest

from airflow_raytpu.model.errors import CheckpointError, PathError
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.buckets import RefusedError, SilentError
from airflow_raytpu.runtime.listing import Kind, opened


class NoSongError(PathError):
    """Of this test's own format."""


SONG = Kind("a song", "Sing it anew.", NoSongError)
SAID = {
    SilentError: ("could not be read", "Google Cloud Storage may be in trouble; try again."),
    RefusedError: (
        "could not be read",
        "Grant the service account of the Ray pods Storage Object User on the bucket.",
    ),
    NoSongError: ("cannot be read as a song", "Sing it anew."),
    PathError: ("could not be read", "See its permissions, and the disk."),
}
BODY = "Failed to read message body, error IOError: "
DETAIL = ". Detail: [errno 13] Permission denied"


def google(word, said):
    """As pyarrow 26.0 has it in most cases."""
    about = "{reason=, domain=, metadata={gcloud-cpp.retry.function=ReadObject, http_status_code=503}}"
    return f"google::cloud::Status({word}: Error, with a last message of {said} error_info={about})"


@pytest.mark.parametrize(
    ("raised", "kind", "why"),
    [
        (OSError(google("UNAVAILABLE", "later")), SilentError, "later"),
        (OSError(BODY + google("UNAVAILABLE", "later")), SilentError, "later"),
        (
            OSError("google::cloud::Status(UNAVAILABLE: In Read(): CURL [56]=Cut)"),
            SilentError,
            "In Read(): CURL [56]=Cut",
        ),
        (OSError("google::cloud::Status(ABORTED: No error_info={})"), SilentError, "No"),
        (pa.ArrowException(google("UNKNOWN", "what?")), SilentError, "what?"),
        (pa.ArrowCapacityError(google("RESOURCE_EXHAUSTED", "later")), SilentError, "later"),
        (PermissionError(13, google("PERMISSION_DENIED", "no right") + DETAIL), RefusedError, "no right"),
        (PermissionError(13, "google::cloud::Status(PERMISSION_DENIED: no right)" + DETAIL), RefusedError, "no right"),
        (PermissionError(13, google("UNAUTHENTICATED", "who?")), RefusedError, "who?"),
        (OSError(BODY + google("PERMISSION_DENIED", "no right")), RefusedError, "no right"),
        (FileNotFoundError(2, google("NOT_FOUND", "No such object: b/a")), NoSongError, "No such object: b/a"),
        (OSError(BODY + google("NOT_FOUND", "No such object: b/a")), NoSongError, "No such object: b/a"),
        (pa.ArrowInvalid(google("OUT_OF_RANGE", "too far")), NoSongError, "too far"),
        (FileNotFoundError(2, "gone"), NoSongError, "[Errno 2] gone"),
        (OSError("Couldn't deserialize thrift"), NoSongError, "Couldn't deserialize thrift"),
        (pa.ArrowInvalid("Not an Arrow file"), NoSongError, "Not an Arrow file"),
        (pa.ArrowNotImplementedError("LZO"), NoSongError, "LZO"),
        (PermissionError(13, "Permission denied"), PathError, "[Errno 13] Permission denied"),
        (OSError(5, "Input/output error"), PathError, "[Errno 5] Input/output error"),
    ],
)
def test_an_error_is_judged_by_what_it_says(tmp_path, raised, kind, why):
    (tmp_path / "a").touch()

    with pytest.raises(kind) as caught, opened(tmp_path.as_uri(), "a", SONG):
        raise raised

    what, lever = SAID[type(caught.value)]
    assert type(caught.value) is kind
    assert (caught.value.cause, caught.value.lever) == (f"{tmp_path.as_uri()}/a {what}: {why}", lever)
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize(
    "raised", [CheckpointError("ours"), SilentError("ours"), pa.ArrowMemoryError("all"), KeyError(1)]
)
def test_what_is_ours_or_no_file_s_is_left_as_it_is(tmp_path, raised):
    (tmp_path / "a").touch()

    with pytest.raises(type(raised)) as caught, opened(tmp_path.as_uri(), "a", SONG):
        raise raised

    assert caught.value is raised


class Storage:
    """Its file is closed the first *closed* times it is looked at, as Arrow's where its first bytes do not come."""

    def __init__(self, closed, why=None):
        self._left, self._why = closed, why

    def open_input_file(self, path):
        return self

    def open_input_stream(self, path):
        assert path == "runs/in/a"
        if self._why:
            raise self._why
        return pa.BufferReader(b"song")

    @property
    def closed(self):
        self._left -= 1
        return self._left >= 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_a_file_whose_first_bytes_do_not_come(monkeypatch):
    def told(storage):
        monkeypatch.setattr(files, "locate", lambda uri: (storage, "runs/in"))
        with opened("gs://runs/in", "a", SONG) as file:
            return file is storage

    assert told(Storage(closed=0, why=OSError("is not asked")))
    # They came when it was asked why they do not.
    assert told(Storage(closed=1))
    with pytest.raises(SilentError, match=r"^gs://runs/in/a could not be read: its first bytes do not come"):
        told(Storage(closed=2))
    with pytest.raises(SilentError, match=r"^gs://runs/in/a could not be read: later"):
        told(Storage(closed=1, why=OSError(google("UNAVAILABLE", "later"))))
    with pytest.raises(NoSongError, match=r"^gs://runs/in/a cannot be read as a song: .*gone"):
        told(Storage(closed=1, why=FileNotFoundError(2, "gone")))
