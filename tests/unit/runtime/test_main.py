"""What a driver leaves behind: an outcome, and an exit code that agrees with it."""

import pytest

from airflow_raytpu.model.errors import NoSliceError
from airflow_raytpu.runtime import __main__ as driver
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.author import AuthorError


@pytest.fixture
def run(make_request, monkeypatch):
    """Run a driver whose runner does *work*; its exit code and the outcome it wrote."""

    def run(work):
        request = make_request()
        files.write_json(request.outbox("request"), request.to_dict())
        monkeypatch.setattr(driver, "_run", work)
        monkeypatch.setattr(driver, "_leave_ray", lambda: None)
        code = driver.main([request.outbox("request")])
        return code, files.read_json(request.outbox("result"))

    return run


def raising(error):
    def work(request, outbox):
        raise error

    return work


def test_success(run):
    code, outcome = run(lambda request, outbox: {"step": 7})

    assert (code, outcome["code"], outcome["value"]) == (0, "", {"step": 7})


def test_the_authors_error(run):
    code, outcome = run(raising(AuthorError("loop raised ValueError.", "x.py:1: ValueError: no", 1.0)))

    assert (code, outcome["code"], outcome["cause"]) == (1, "RT301", "loop raised ValueError.")
    assert outcome["traceback"] == "x.py:1: ValueError: no"


def test_the_places_error(run):
    code, outcome = run(raising(NoSliceError("none", "wait")))

    assert (code, outcome["code"], outcome["cause"], outcome["lever"]) == (1, "RT203", "none", "wait")


def test_a_fault_of_our_own(run):
    code, outcome = run(raising(KeyError("x")))

    assert (code, outcome["code"]) == (1, "RT302")
    assert "KeyError" in outcome["cause"]


def test_storage_that_refuses_is_named(run):
    code, outcome = run(raising(PermissionError(13, "Permission denied", "/runs/checkpoints")))

    assert (code, outcome["code"]) == (1, "RT103")
    assert outcome["cause"] == "/runs/checkpoints is refused: Permission denied."


def test_a_stopped_driver_claims_nothing(run):
    code, outcome = run(raising(KeyboardInterrupt()))

    assert (code, outcome) == (143, None)


@pytest.mark.parametrize("arguments", [[], ["a", "b"]])
def test_wrong_use(arguments, capsys):
    assert driver.main(arguments) == 2
    assert "usage" in capsys.readouterr().err


def test_a_request_that_is_gone(tmp_path, capsys):
    assert driver.main([(tmp_path / "none.json").as_uri()]) == 2
    assert "There is no request at" in capsys.readouterr().err


def test_the_driver_never_imports_jax(tmp_path):
    import subprocess
    import sys

    rooms = "airflow_raytpu.runtime.train, airflow_raytpu.runtime.inference, airflow_raytpu.runtime.serve"
    code = f"import sys, {rooms}; print([name for name in ('jax', 'airflow') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 1, "identity": 7}'])
def test_a_request_that_was_cut_off_is_refused_in_one_line(make_request, capfd, text):
    request = make_request()
    files.write_bytes(request.outbox("request"), text)

    assert driver.main([request.outbox("request")]) == 2
    assert "holds no whole request" in capfd.readouterr().err
    assert files.read_json(request.outbox("result")) is None
