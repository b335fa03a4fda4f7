"""The author's code is found by reading, never by running."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from io import BytesIO

import pytest

from airflow_raytpu.model.errors import CodeError
from airflow_raytpu.storage import code as code_module
from airflow_raytpu.storage import imports, objects, staging
from airflow_raytpu.storage.code import find_code

EXPLODES = "raise RuntimeError('this module was imported')\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A package and a module of the author's on sys.path; importing either fails the test."""
    folder = tmp_path / "project"
    (folder / "numerals" / "inner").mkdir(parents=True)
    (folder / "numerals" / "__init__.py").write_text(EXPLODES)
    (folder / "numerals" / "train.py").write_text(
        EXPLODES + "import jax\ndef loop(config): ...\nclass Maker:\n    def build(self): ...\nASSIGNED = loop\n"
        "from json import dumps as aliased\nif True:\n    def conditional(): ...\n"
    )
    (folder / "numerals" / "inner" / "deep.py").write_text("def f(): ...\n")
    (folder / "numerals" / "labels.txt").write_text("zero")
    (folder / "numerals" / "__pycache__").mkdir()
    (folder / "numerals" / "__pycache__" / "x.pyc").write_text("no")
    (folder / "lonely.py").write_text("def loop(config): ...\n")
    (folder / "open_ended.py").write_text("from os.path import *\n")
    (folder / "broken.py").write_text("def loop(:\n")
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.parametrize(
    "entry",
    [
        "numerals.train:loop",
        "numerals.train:Maker.build",
        "numerals.train:ASSIGNED",
        "numerals.train:aliased",
        "numerals.train:conditional",
        "numerals.inner.deep:f",
        "lonely:loop",
        "open_ended:join",
    ],
)
def test_code_is_found_without_importing_it(entry, project):
    assert find_code(entry).entry == entry
    assert "numerals" not in sys.modules


def test_a_module_that_many_tasks_name_is_parsed_again_only_once_it_has_changed(project, monkeypatch):
    parsed, parse = [], code_module.ast.parse

    def noted(text, filename):
        parsed.append(filename)
        return parse(text, filename)

    monkeypatch.setattr(code_module.ast, "parse", noted)
    for entry in ("lonely:loop", "lonely:loop", "numerals.inner.deep:f", "lonely:loop"):
        imports.at_top(find_code(entry), "jax")
    assert sorted(parsed) == [str(project / "lonely.py"), str(project / "numerals" / "inner" / "deep.py")]

    (project / "lonely.py").write_text("def pool(config): ...\n")
    assert find_code("lonely:pool").entry == "lonely:pool"
    with pytest.raises(CodeError, match="defines no loop"):
        find_code("lonely:loop")


def test_a_package_is_shipped_whole_and_a_module_alone(project):
    assert sorted(find_code("numerals.train:loop").files()) == [
        "numerals/__init__.py",
        "numerals/inner/deep.py",
        "numerals/labels.txt",
        "numerals/train.py",
    ]
    assert sorted(find_code("lonely:loop").files()) == ["lonely.py"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("numerals.train", r'is \'numerals.train\', which is not "module:function"'),
        ("numerals.train:", "not .module:function"),
        ("numerals/train.py:loop", "not .module:function"),
        ("numeral.train:loop", r"there is no module numeral\.\n  Nearest: numerals\. Looked in .*project"),
        (
            "numerals.trian:loop",
            r"there is no module numerals\.trian\.\n  Nearest: numerals\.train\. Looked in .*numerals",
        ),
        ("numerals.train:lop", r"train\.py defines no lop\.\n  It defines loop"),
        ("lonely.more:loop", r"there is no module lonely\.more\.\n  .*lonely\.py is a single module"),
        ("broken:loop", r"broken\.py:1: "),
        ("sys:exit", "there is no module sys"),
    ],
)
def test_what_cannot_be_found_says_where_it_was_looked_for(entry, message, project):
    with pytest.raises(CodeError, match=message):
        find_code(entry, "train_loop")


def test_the_message_names_the_argument(project):
    with pytest.raises(CodeError, match=r"^predict lonely:x: "):
        find_code("lonely:x", "predict")


# --- functions ---------------------------------------------------------------------------------------------------


def load_as_airflow_does(path):
    """A DAG file's module has a name that nothing can import."""
    spec = importlib.util.spec_from_file_location(f"unusual_prefix_123_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def dag_file(tmp_path):
    def write(text):
        path = tmp_path / "my_dag.py"
        path.write_text(text)
        return load_as_airflow_does(path)

    return write


def test_a_function_of_a_module_goes_by_its_name(project):
    (project / "plain.py").write_text("def loop(config): ...\n")
    import plain

    assert find_code(plain.loop).entry == "plain:loop"


def test_a_function_of_the_dag_file_becomes_a_module_with_the_dags_line_numbers(dag_file, tmp_path):
    module = dag_file(
        "import math\n\nclass Any: ...\n\ndef loop(config: Any, steps=10) -> Any:\n    raise ValueError(steps)\n"
    )
    found = find_code(module.loop)
    name, _, function = found.entry.partition(":")
    (path, source), *rest = found.files().items()
    assert (path, function, rest) == (f"{name}.py", "loop", [])
    scope: dict = {}
    exec(compile(source, path, "exec"), scope)
    with pytest.raises(ValueError, match="10") as caught:
        scope["loop"]({})
    assert caught.traceback[-1].lineno + 1 == 6


def test_a_function_that_stands_alone_may_import_recurse_and_nest(dag_file):
    module = dag_file(
        "def loop(config):\n    import math\n    class Local:\n        x = 1\n        y = x\n"
        "    def inner(n):\n        return math.pi + len([q for q in range(n)])\n    return loop if config else inner\n"
    )
    assert find_code(module.loop).source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import math\ndef loop(config):\n    return math.pi\n", r"uses math from it.*\n  Import inside the function"),
        (
            "A = B = 1\ndef loop(config):\n    def inner():\n        return A + B\n    return inner\n",
            "uses A, B from it",
        ),
        ("LIMIT = 1\ndef loop(config, limit=LIMIT): ...\n", "uses LIMIT from it"),
        ("loop = lambda config: None\n", "is a lambda"),
        (
            "def make():\n    seen = 1\n    def loop(config):\n        return seen\n    return loop\nloop = make()\n",
            "closure over seen",
        ),
        (
            "def deco(f): return f\n@deco\ndef loop(config): ...\n",
            "is decorated",
        ),
        ("class Loop:\n    def __call__(self, config): ...\nloop = Loop()\n", "is a Loop, which cannot be shipped"),
    ],
)
def test_a_function_that_needs_its_dag_file_is_refused(text, message, dag_file):
    with pytest.raises(CodeError, match=message):
        find_code(dag_file(text).loop, "train_loop")


# --- staging -----------------------------------------------------------------------------------------------------


def names(uri):
    return sorted(zipfile.ZipFile(BytesIO(objects.read_bytes(uri))).namelist())


def test_the_zip_holds_the_runtime_and_the_authors_files_and_no_airflow_side(project, tmp_path):
    held = names(staging.stage([find_code("numerals.train:loop")], f"file://{tmp_path}/root"))
    assert "numerals/labels.txt" in held
    assert {"airflow_raytpu/__init__.py", "airflow_raytpu/model/request.py", "airflow_raytpu/placement/plan.py"} <= set(
        held
    )
    assert not [name for name in held if "/operators/" in name or "/storage/" in name or "/backends/" in name]
    assert not [name for name in held if "__pycache__" in name]


def test_the_same_code_is_the_same_object_and_is_written_once(project, tmp_path, monkeypatch):
    root = f"file://{tmp_path}/root"
    first = staging.stage([find_code("numerals.train:loop")], root)
    writes = []
    monkeypatch.setattr(objects, "write_bytes", lambda *a, **k: writes.append(a))
    assert staging.stage([find_code("numerals.train:Maker")], root) == first
    assert writes == []


def test_other_code_is_another_object(project, tmp_path):
    root = f"file://{tmp_path}/root"
    first = staging.stage([find_code("lonely:loop")], root)
    (project / "lonely.py").write_text("def loop(config): return 1\n")
    assert staging.stage([find_code("lonely:loop")], root) != first


def test_a_write_that_was_cut_short_is_made_good(project, tmp_path):
    root = f"file://{tmp_path}/root"
    uri = staging.stage([find_code("lonely:loop")], root)
    whole = objects.read_bytes(uri)
    objects.write_bytes(uri, whole[:100])
    assert staging.stage([find_code("lonely:loop")], root) == uri
    assert objects.read_bytes(uri) == whole


def test_too_much_is_refused_with_its_size(project, tmp_path, monkeypatch):
    monkeypatch.setattr(code_module, "SIZE_LIMIT", 50)
    with pytest.raises(CodeError, match="numerals is larger than"):
        find_code("numerals.train:loop").files()
