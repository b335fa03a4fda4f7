"""The few forms of CEL rules that KubeRay's CRDs have. A rule of another form is an error, never passed over."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_HAS = re.compile(r"has\(self((?:\.\w+)+)\)")


def broken(rules: Iterable[Mapping[str, str]], value: Any, old: Any) -> Iterator[str]:
    """The messages of *rules* that *value* breaks; rules about changes hold only where there was a value before."""
    for rule in rules:
        about_change = "oldSelf" in rule["rule"]
        if about_change and old is None:
            continue
        if not _holds(_parsed(rule["rule"]), value, old):
            yield rule.get("message") or f"failed rule: {rule['rule']}"


@functools.cache
def _parsed(text: str) -> ast.expr:
    """CEL's operators in Python's words, and ``has(self.a)`` as the string ``.a``."""
    text = _HAS.sub(r"'\1'", text).replace("&&", " and ").replace("||", " or ")
    return ast.parse(re.sub(r"!(?!=)", " not ", text).strip(), mode="eval").body


def _holds(rule: ast.expr, value: Any, old: Any) -> Any:
    def of(node: ast.expr) -> Any:
        return _holds(node, value, old)

    match rule:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(map(of, parts))
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(map(of, parts))
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return not of(part)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return of(left) == of(right)
        case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.List(elts=elements)]):
            return of(left) in [ast.literal_eval(each) for each in elements]
        case ast.Name(id="self"):
            return value
        case ast.Name(id="oldSelf"):
            return old
        case ast.Constant(value=str() as path):
            return _has(value, path)
    raise NotImplementedError(f"a CEL rule of this form: {ast.unparse(rule)}")


def _has(value: Any, path: str) -> bool:
    for name in path.strip(".").split("."):
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True
