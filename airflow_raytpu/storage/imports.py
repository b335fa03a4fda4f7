"""What the author's module imports as soon as it is imported itself, read from its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from airflow_raytpu.storage.code import Code, syntax_tree


def at_top(code: Code, package: str) -> str:
    """Where the module of *code* imports *package* outside of functions, as ``digits/train.py:3``; empty: nowhere."""
    module = code.entry.partition(":")[0]
    for root, _ in code.roots:
        below = root.joinpath(*module.split("."))
        for file in (below / "__init__.py", below.with_suffix(".py")):
            if file.is_file():
                lines = _lines(syntax_tree(file.read_bytes(), str(file)).body, package)
                return next((f"{file.relative_to(root).as_posix()}:{line}" for line in lines), "")
    return ""


def _lines(body: list[ast.stmt], package: str) -> Iterator[int]:
    for node in body:
        match node:
            case ast.Import():
                if any(alias.name.partition(".")[0] == package for alias in node.names):
                    yield node.lineno
            case ast.ImportFrom(level=0, module=str(module)):
                if module.partition(".")[0] == package:
                    yield node.lineno
            case ast.Try() | ast.With():
                yield from _lines(node.body, package)
