"""The author's code, found without running it: what ``"module:function"`` or a function names, and the files it needs.

Called when a DAG is parsed, so nothing is imported: the module is found on ``sys.path`` and read as a syntax tree.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import dis
import functools
import hashlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType
from typing import Any

from airflow_raytpu.model.errors import CodeError

SIZE_LIMIT = 10_000_000
"""Largest code that is shipped, in bytes: beyond that it is data, and belongs in storage."""

_ENTRY = re.compile(r"[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)*:[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)*")
_LEFT_OUT = {"__pycache__", ".git"}
_FUTURE = "from __future__ import annotations"
_MOVE = 'Import inside the function, or put it in a module and pass "module:function".'


@dataclass(frozen=True, slots=True)
class Code:
    """Code that a request runs.

    :param entry: ``module:qualname`` on the cluster.
    :param roots: folders that hold the top-level package or module, each with the name to ship from it.
    :param source: text of a generated module, for a function of the DAG file itself.
    """

    entry: str
    roots: tuple[tuple[Path, str], ...] = ()
    source: str = ""

    def files(self) -> dict[str, bytes]:
        """Everything to ship, by path from the top of ``sys.path``.

        :raises CodeError: more than :data:`SIZE_LIMIT`.
        """
        if self.source:
            return {f"{self.entry.partition(':')[0]}.py": self.source.encode()}
        found: dict[str, bytes] = {}
        total = 0
        for root, name in self.roots:
            for path in _walk(root / name):
                total += path.stat().st_size
                if total > SIZE_LIMIT:
                    raise CodeError(
                        f"{root / name} is larger than {SIZE_LIMIT / 1e6:.0f} MB, too much to ship as code.",
                        "Move its data to storage and pass the URI, or put the code in a package of its own.",
                    )
                found[path.relative_to(root).as_posix()] = path.read_bytes()
        return found


def find_code(entry: str | Callable[..., Any] | Code, what: str = "code", *, decorated: bool = False) -> Code:
    """What *entry* names, checked but not imported.

    :param entry: ``"module:qualname"``, or the function itself; what was found already is left as it is.
    :param what: the argument's name, for messages.
    :param decorated: the function's decorators are Airflow's: it is shipped without them, and never by its name, which
        is the task's.
    :raises CodeError: it cannot be found, or it cannot run away from its DAG file.
    """
    if isinstance(entry, Code):
        return entry
    if isinstance(entry, str):
        return _find_named(entry, what)
    if not inspect.isfunction(entry):
        raise CodeError(
            f"{what} is a {type(entry).__name__}, which cannot be shipped.",
            'Pass a function, or its name as "module:function".',
        )
    if decorated:
        return _generated(entry, what, decorated=True)
    spec = _top_spec(entry.__module__)
    file = _module_file(spec, entry.__module__) if spec else None
    if (
        file is not None
        and file.resolve() == Path(inspect.getfile(entry)).resolve()
        and "<locals>" not in entry.__qualname__
    ):
        return _find_named(f"{entry.__module__}:{entry.__qualname__}", what)
    return _generated(entry, what)


def _find_named(entry: str, what: str) -> Code:
    if not _ENTRY.fullmatch(entry):
        raise CodeError(
            f'{what} is {entry!r}, which is not "module:function".', 'Write it as "package.module:function".'
        )
    file, roots = _find_module(entry.partition(":")[0], f"{what} {entry}")
    _check_defined(file, entry, what)
    return Code(entry, roots)


def find_module(module: str, what: str, *, runnable: bool = False) -> Code:
    """The module or package *module*, checked but not imported.

    :param runnable: it must be one that ``python -m`` runs.
    :raises CodeError: it cannot be found.
    """
    if not all(part.isidentifier() for part in module.split(".")):
        raise CodeError(f"{what} is {module!r}, which is no module's name.", 'Write it as "package.module".')
    file, roots = _find_module(module, f"{what} {module}")
    if runnable and file.name == "__init__.py" and not file.with_name("__main__.py").is_file():
        raise CodeError(
            f"{what} {module} is a package with no __main__.py, so it cannot be run.", "Name a module in it."
        )
    return Code(module, roots)


@functools.lru_cache(maxsize=32)
def syntax_tree(text: bytes, file: str) -> ast.Module:
    """The tree of *text*, not to be changed. Parsed once: many tasks of a DAG name functions of one module.

    :raises SyntaxError: it cannot be read.
    """
    return ast.parse(text, filename=file)


def _find_module(module: str, asked: str) -> tuple[Path, tuple[tuple[Path, str], ...]]:
    """The file of *module*, and what to ship for it.

    :param asked: what was asked for, for messages.
    """
    top = module.partition(".")[0]
    spec = _top_spec(module)
    if spec is None:
        raise CodeError(f"{asked}: there is no module {top}.", _where_looked(top))
    file = _module_file(spec, module)
    if file is None:
        raise CodeError(f"{asked}: there is no module {module}.", _inside(spec, module))
    if spec.submodule_search_locations is None:
        return file, ((file.parent, file.name),)
    return file, tuple((Path(place).parent, top) for place in spec.submodule_search_locations)


def _top_spec(module: str) -> ModuleSpec | None:
    # Not importlib.util.find_spec: that answers from sys.modules, where a module may have no spec at all.
    top = module.partition(".")[0]
    specs = (finder.find_spec(top, None) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def _module_file(spec: ModuleSpec, module: str) -> Path | None:
    """The source file of *module*, by the folders below its top-level package."""
    _, *rest = module.split(".")
    if spec.submodule_search_locations is None:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") and not rest else None
    for place in spec.submodule_search_locations:
        below = Path(place).joinpath(*rest)
        for file in (below / "__init__.py", below.with_suffix(".py")):
            if file.is_file() and (rest or file.name == "__init__.py"):
                return file
    return None


def _check_defined(file: Path, entry: str, what: str) -> None:
    """*file* defines the first part of the qualified name, as far as can be read from its text."""
    try:
        tree = syntax_tree(file.read_bytes(), str(file))
    except SyntaxError as error:
        raise CodeError(f"{what} {entry}: {file}:{error.lineno}: {error.msg}.", "Correct the syntax.") from error
    names = set(_defined(tree.body))
    name = entry.partition(":")[2].partition(".")[0]
    if name in names or names & {"*", "__getattr__"}:
        return
    near = difflib.get_close_matches(name, names, n=3) or sorted(n for n in names if not n.startswith("_"))[:5]
    raise CodeError(
        f"{what} {entry}: {file} defines no {name}.",
        f"It defines {', '.join(near)}." if near else "It defines nothing.",
    )


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
            case ast.Assign():
                yield from (
                    name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
                )
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If() | ast.Try() | ast.With():
                yield from _defined(
                    [child for child in ast.walk(node) if isinstance(child, ast.stmt) and child is not node]
                )


def _where_looked(top: str) -> str:
    modules = {
        path.stem for place in sys.path if Path(place).is_dir() for path in Path(place).iterdir() if _is_module(path)
    }
    near = difflib.get_close_matches(top, modules, n=1, cutoff=0.75)
    looked = ", ".join(place or "." for place in sys.path)
    return (f"Nearest: {near[0]}. " if near else "") + f"Looked in {looked}."


def _is_module(path: Path) -> bool:
    return path.suffix == ".py" or (path.stem.isidentifier() and (path / "__init__.py").is_file())


def _inside(spec: ModuleSpec, module: str) -> str:
    places = list(spec.submodule_search_locations or [])
    if not places:
        return f"{spec.origin} is a single module, with nothing inside it."
    known = sorted(
        ".".join((spec.name, *path.relative_to(place).with_suffix("").parts))
        for place in places
        for path in Path(place).rglob("*.py")
    )
    near = difflib.get_close_matches(module, known, n=1)
    return (f"Nearest: {near[0]}. " if near else "") + f"Looked in {', '.join(places)}."


def _walk(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for child in sorted(path.iterdir()):
        if child.name not in _LEFT_OUT and not child.is_symlink():
            yield from _walk(child)


def _generated(function: Callable[..., Any], what: str, *, decorated: bool = False) -> Code:
    """A module made of the function's own text, with the line numbers of the DAG file."""
    name = function.__name__
    if name == "<lambda>":
        raise CodeError(f"{what} is a lambda, which has no text of its own.", "Use def.")
    code = function.__code__
    if code.co_freevars:
        raise CodeError(
            f"{what} {name} is a closure over {', '.join(code.co_freevars)}.", "Pass the values as arguments."
        )
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError as error:
        raise CodeError(f"{what} {name}: its source cannot be read: {error}.", _MOVE) from error
    text = textwrap.dedent("".join(lines))
    definition = ast.parse(text).body[0]
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef) or (
        definition.decorator_list and not decorated
    ):
        raise CodeError(
            f"{what} {name} is decorated, and the decorator is not shipped with it.", "Remove the decorator."
        )
    text = "\n" * (definition.lineno - 1) + "".join(text.splitlines(keepends=True)[definition.lineno - 1 :])
    outside = sorted({*_globals(code), *_names(definition.args)} - set(dir(builtins)) - {name})
    if outside:
        raise CodeError(
            f"{what} {name} is defined in the DAG file and uses {', '.join(outside)} from it, which is not shipped.",
            _MOVE,
        )
    # The blank lines make a traceback show the DAG file's own line numbers.
    source = _FUTURE + "\n" * max(first - 1, 1) + text
    module = f"dagcode_{name}_{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    return Code(f"{module}:{name}", source=source)


def _globals(code: CodeType) -> Iterator[str]:
    instructions = list(dis.get_instructions(code))
    own = {step.argval for step in instructions if step.opname == "STORE_NAME"}
    for step in instructions:
        if step.opname in {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"} and step.argval not in own:
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)


def _names(arguments: ast.arguments) -> Iterator[str]:
    """Names in default values: they are read where the function is defined."""
    for default in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
        yield from (node.id for node in ast.walk(default) if isinstance(node, ast.Name))
