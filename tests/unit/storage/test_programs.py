"""What a job may be told to run, found without running it."""

from __future__ import annotations

import pytest

from airflow_raytpu.model.errors import CodeError
from airflow_raytpu.storage.code import find_code, find_module
from airflow_raytpu.storage.programs import find_program

EXPLODES = "raise RuntimeError('this was run')\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    (folder / "tools").mkdir(parents=True)
    (folder / "entry").mkdir()
    for name in ("top.py", "tools/embed.py", "tools/words.py", "entry/__init__.py", "entry/main.py"):
        (folder / name).write_text(EXPLODES)
    (folder / "whole").mkdir()
    (folder / "whole" / "__init__.py").write_text(EXPLODES)
    (folder / "whole" / "__main__.py").write_text(EXPLODES)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.parametrize(
    ("run", "how", "entry", "shipped"),
    [
        ("tools/embed.py", "script", "tools/embed.py", ["tools/embed.py", "tools/words.py"]),
        ("top.py", "script", "top.py", ["top.py"]),
        ("entry.main", "module", "entry.main", ["entry/__init__.py", "entry/main.py"]),
        ("whole", "module", "whole", ["whole/__init__.py", "whole/__main__.py"]),
        ("json:dumps", "function", "json:dumps", None),
    ],
)
def test_what_a_text_names(run, how, entry, shipped, project):
    program = find_program(run)
    assert (program.how, program.code.entry) == (how, entry)
    assert shipped is None or sorted(program.code.files()) == shipped


def test_an_absolute_script_comes_alone(project):
    program = find_program(str(project / "tools" / "embed.py"))
    assert (program.how, program.code.entry, sorted(program.code.files())) == ("script", "embed.py", ["embed.py"])


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("tools/embd.py", r"there is no such file\.\n  Looked in .*project"),
        ("/nowhere/x.py", "there is no such file"),
        ("../top.py", "leads out of the folder"),
        ("entry", "is a package with no __main__.py"),
        ("entry.mian", r"there is no module entry\.mian\.\n  Nearest: entry\.main"),
        ("rm -rf /", "which is no module's name"),
        (" ", "is empty"),
    ],
)
def test_what_is_not_there_is_refused_with_the_nearest(run, message, project):
    with pytest.raises(CodeError, match=message):
        find_program(run)


def test_a_module_that_is_only_shipped_need_not_be_one_that_runs(project):
    assert sorted(find_module("entry", "modules").files()) == ["entry/__init__.py", "entry/main.py"]


def wraps(**options):
    return lambda function: function


@wraps(
    slice="v6e:4x4",
)
def decorated(x):
    return x + 1


def test_a_decorated_function_is_shipped_without_its_decorator_and_with_its_line_numbers():
    code = find_code(decorated, decorated=True)
    namespace: dict = {}
    exec(compile(code.source, "there", "exec"), namespace)
    assert "wraps" not in code.source
    assert namespace["decorated"](1) == 2
    here = decorated.__code__
    there = namespace["decorated"].__code__
    assert [line for *_, line in there.co_lines()][1:] == [line for *_, line in here.co_lines()][1:]


def test_a_decorator_that_nobody_vouches_for_is_refused():
    def local():
        @wraps()
        def inner(x):
            return x

        return inner

    with pytest.raises(CodeError, match="is decorated"):
        find_program(local())


def test_what_was_found_already_is_left_as_it_is():
    code = find_code("json:dumps")
    assert find_code(code) is code
    assert find_program(code).code is code
