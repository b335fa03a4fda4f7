"""The author reads their own frames, and the right host is blamed."""

import pickle
import sys

import pytest

from airflow_raytpu.model.errors import CodeError, PathError
from airflow_raytpu.runtime import author
from airflow_raytpu.runtime.author import AuthorError, first_to_blame, load, quoted

CODE = """
import json

def check(labels):
    if max(labels) > 9:
        raise ValueError(f"labels out of range: {max(labels)}")

def loop(labels):
    check(labels)

def library():
    json.loads("{")

def chained():
    try:
        check([10])
    except ValueError as error:
        raise RuntimeError("no batch") from error

class Holder:
    @staticmethod
    def method():
        return 7
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "wares").mkdir()
    (tmp_path / "wares" / "__init__.py").write_text("")
    (tmp_path / "wares" / "train.py").write_text(CODE)
    (tmp_path / "wares" / "broken.py").write_text("x = 1 / 0\n")
    (tmp_path / "wares" / "needs.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "wares"]:
        del sys.modules[name]


def raised(function, *arguments):
    with pytest.raises(AuthorError) as caught, quoted("loop", lambda: " on rank 3 at step 412"):
        function(*arguments)
    return caught.value


@pytest.mark.usefixtures("code")
def test_the_last_line_names_file_line_type_and_message():
    error = raised(load("wares.train:loop"), [10])

    assert error.cause == "loop raised ValueError on rank 3 at step 412."
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert error.traceback.splitlines()[-5:] == [
        '  File "wares/train.py", line 9, in loop',
        "    check(labels)",
        '  File "wares/train.py", line 6, in check',
        '    raise ValueError(f"labels out of range: {max(labels)}")',
        "wares/train.py:6: ValueError: labels out of range: 10",
    ]


@pytest.mark.usefixtures("code")
def test_frames_of_libraries_are_left_out():
    error = raised(load("wares.train:library"))

    assert "json/decoder.py" not in error.traceback
    assert error.traceback.splitlines()[-1].startswith("wares/train.py:12: JSONDecodeError: Expecting property name")


@pytest.mark.usefixtures("code")
def test_a_cause_comes_before_what_it_led_to():
    lines = raised(load("wares.train:chained")).traceback.splitlines()

    assert "wares/train.py:6: ValueError: labels out of range: 10" in lines
    assert lines[-1] == "wares/train.py:18: RuntimeError: no batch"


@pytest.mark.usefixtures("code")
def test_a_nested_name_is_found():
    assert load("wares.train:Holder.method")() == 7


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("wares.nowhere:loop", "There is no module 'wares.nowhere'"),
        ("nowhere:loop", "There is no module 'nowhere'"),
        ("wares.train:gone", "wares.train has no 'gone'"),
    ],
)
def test_a_wrong_name_is_our_error(reference, message):
    with pytest.raises(CodeError, match=message):
        load(reference)


@pytest.mark.usefixtures("code")
def test_a_module_that_raises_is_the_authors_error():
    with pytest.raises(AuthorError) as caught:
        load("wares.broken:loop")

    assert caught.value.traceback.splitlines()[-1] == "wares/broken.py:1: ZeroDivisionError: division by zero"


@pytest.mark.usefixtures("code")
def test_a_library_that_is_missing_is_the_authors_error():
    with pytest.raises(AuthorError, match="no_such_library"):
        load("wares.needs:loop")


def test_our_own_errors_pass_through():
    with pytest.raises(PathError), quoted("loop"):
        raise PathError("no space", "make room")


def test_it_survives_pickling():
    error = AuthorError("cause", "frames", 12.0, collateral=True)

    copy = pickle.loads(pickle.dumps(error))

    assert (copy.cause, copy.traceback, copy.at, copy.collateral) == ("cause", "frames", 12.0, True)


def test_the_first_is_to_blame_and_an_echo_only_where_there_is_nothing_else():
    echo = AuthorError("echo", "", 1.0, collateral=True)
    first, later = AuthorError("first", "", 2.0), AuthorError("later", "", 3.0)

    assert first_to_blame({0: echo, 1: later, 3: first, 4: OSError()}) is first
    assert first_to_blame({0: echo}) is echo
    assert first_to_blame({0: OSError()}) is None


def test_the_packages_own_frames_are_not_the_authors():
    assert not author._is_own(author.__file__)
    assert not author._is_own("<string>")
    assert author._is_own(__file__)
