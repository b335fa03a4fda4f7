"""A trace of the steps that were asked for, once in a run, and no training that fails for it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from airflow_raytpu.model.policies import Profile
from airflow_raytpu.runtime import files, profiling
from airflow_raytpu.runtime.profiling import Profiler


@pytest.fixture
def jax(monkeypatch, tmp_path):
    # What an abandoned trace leaves once it is stopped after all.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    import jax

    return jax


@pytest.mark.parametrize(("began", "traced"), [(0, [4, 5]), (6, [8, 9])])
def test_the_steps_that_are_asked_for_are_traced_once_and_put_into_storage(jax, tmp_path, began, traced):
    uri = (tmp_path / "pro file").as_uri()
    profiler = Profiler(Profile(start_step=3, steps=2), uri)
    for step in range(began + 1, 13):
        with jax.profiler.TraceAnnotation(f"number-{step:02d}"):
            x = jax.numpy.zeros(4) + step
        profiler.after(step, {"x": x})
    profiler.finish()

    (trace,) = [place for place in files.sizes(uri) if place.endswith(".xplane.pb")]
    data = files.read_bytes(f"{uri}/{trace}")
    # A try that begins beyond the start traces what comes after its first step, which holds the compilation.
    assert [step for step in range(1, 13) if f"number-{step:02d}".encode() in data] == traced
    assert profiler.blocked_s > 0
    assert not Path(profiler._folder).exists()


def test_a_loop_that_ends_early_leaves_what_was_traced_and_one_that_fails_nothing(jax, tmp_path):
    ends, fails = (Profiler(Profile(start_step=1, steps=9), (tmp_path / name).as_uri()) for name in ("ends", "fails"))
    ends.after(1, None)
    ends.finish()
    assert files.sizes((tmp_path / "ends").as_uri())
    try:
        fails.after(1, None)
        folder = Path(fails._folder)
        fails.abandon()
    finally:
        jax.profiler.stop_trace()
    fails.finish()
    assert files.sizes((tmp_path / "fails").as_uri()) == {}
    assert not [path for path in folder.rglob("*.pb") if path.stat().st_size == 0]


@pytest.mark.parametrize("broken", ["start_trace", "stop_trace", "storage"])
def test_a_profile_that_cannot_be_taken_is_told_and_no_more(jax, tmp_path, monkeypatch, caplog, broken):
    def refuse(*_):
        raise RuntimeError("no profile today")

    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: (Path(folder) / "x").write_text("trace"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: None)
    cause = "RuntimeError: no profile today"
    if broken == "storage":
        (tmp_path / "profile").write_text("no folder")
        cause = "NotADirectoryError|FileExistsError"
    else:
        monkeypatch.setattr(jax.profiler, broken, refuse)
    profiler = Profiler(Profile(start_step=0, steps=1), (tmp_path / "profile").as_uri() + "/x")

    for step in range(1, 6):
        profiler.after(step, None)
    profiler.finish()

    (told,) = caplog.messages
    assert told.startswith("There is no profile from step 1 on: ")
    assert any(each in told for each in cause.split("|"))
    assert not Path(profiler._folder or tmp_path / "none").exists()


def test_the_newest_trace_of_the_attempts_that_count_is_found(make_request, tmp_path):
    requests = {attempt: make_request(attempt=attempt) for attempt in (1, 2, 3)}
    names = tuple(request.name for request in requests.values())
    assert profiling.found(requests[3], names) == ""
    for attempt in (1, 2):
        files.write_bytes(f"{profiling.folder(requests[attempt])}/plugins/profile/now/host.xplane.pb", b"x")
    assert profiling.found(requests[3], names) == profiling.folder(requests[2])
    assert profiling.found(requests[3], names[::2]) == profiling.folder(requests[1])
    assert profiling.found(requests[3], names[2:]) == ""
