"""Whose work an attempt goes on from."""

import pytest

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.model.result import Outcome
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.commits import Commit, record
from airflow_raytpu.runtime.lineage import lineage, warm_start


def end(request, code=""):
    files.write_json(request.outbox("result"), Outcome(request=request.name, code=code).to_dict())


def test_a_retry_goes_on_from_what_failed(make_request):
    first, second, third = (make_request(attempt=attempt) for attempt in (1, 2, 3))
    end(first, code="RT301")

    assert lineage(third) == (third.name, second.name, first.name)


def test_after_a_success_the_work_is_done_again(make_request):
    first, second, third = (make_request(attempt=attempt) for attempt in (1, 2, 3))
    end(first)
    end(second, code="RT204")

    assert lineage(third) == (third.name, second.name)


def test_never_means_alone(make_request):
    third = make_request(attempt=3)

    assert lineage(third, "never") == (third.name,)


@pytest.mark.parametrize("cut", [b"", b"{", b"[]", b'{"request": 7}'])
@pytest.mark.parametrize(
    ("used", "goes_on"),
    [(b'{"phase": "FAILED"}', True), (b'{"phase": "SUCCEEDED"}', False), (b"{", False), (b"{}", False)],
)
def test_where_a_result_was_cut_off_airflows_mark_tells(make_request, cut, used, goes_on):
    first, second = (make_request(attempt=attempt) for attempt in (1, 2))
    files.write_bytes(first.outbox("result"), cut)
    files.write_bytes(first.outbox("used"), used)

    assert lineage(second) == ((second.name, first.name) if goes_on else (second.name,))


def test_a_warm_start_that_is_not_there_is_refused_before_a_slice_is_waited_for(make_request, tmp_path):
    uri = (tmp_path / "gone").as_uri()
    request = make_request(arguments={"warm_start": uri})
    with pytest.raises(PathError, match="There is no checkpoint at") as caught:
        warm_start(request)
    assert caught.value.lever == "Give the checkpoint that a training task returned."

    # It may go once the run has a checkpoint of its own.
    record(Commit(5, f"{request.storage}/checkpoints/5", request.name))
    assert warm_start(request) == uri
    with pytest.raises(PathError):
        warm_start(make_request(attempt=2, arguments={"warm_start": uri, "resume": "never"}))


def test_a_warm_start_that_is_there_is_taken(make_request, tmp_path):
    uri = (tmp_path / "there").as_uri()
    files.write_bytes(f"{uri}/_METADATA", b"x")

    assert warm_start(make_request(arguments={"warm_start": uri})) == uri
    assert warm_start(make_request()) == ""
