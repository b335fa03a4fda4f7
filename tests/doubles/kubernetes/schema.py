"""What the API server does with an object of a CRD: prune, default, validate (structural schemas, Kubernetes 1.36)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.doubles.kubernetes import rules
from tests.doubles.kubernetes.refusal import Cause

Schema = dict[str, Any]
_OF_OBJECT = {"apiVersion", "kind", "metadata"}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.IGNORECASE)


def prune(value: Any, schema: Schema, path: str = "") -> tuple[Any, list[str]]:
    """*value* without the fields that *schema* does not know, and their paths."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return value, []
    unknown: list[str] = []
    if isinstance(value, list) and "items" in schema:
        kept_items = []
        for index, item in enumerate(value):
            kept, more = prune(item, schema["items"], f"{path}[{index}]")
            kept_items.append(kept)
            unknown += more
        return kept_items, unknown
    if not isinstance(value, dict):
        return value, []
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    kept_fields = {}
    for name, item in value.items():
        below = f"{path}.{name}" if path else name
        if not path and name in _OF_OBJECT:
            kept_fields[name] = item
        elif name in known or isinstance(others, dict):
            kept_fields[name], more = prune(item, known.get(name, others), below)
            unknown += more
        elif others is True:
            kept_fields[name] = item
        else:
            unknown.append(below)
    return kept_fields, unknown


def default(value: Any, schema: Schema) -> Any:
    """*value* with the defaults of *schema* where a field is left out, or null and not allowed to be."""
    if isinstance(value, list):
        return [default(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    filled = dict(value)
    for name, below in known.items():
        if "default" in below and (name not in filled or (filled[name] is None and not below.get("nullable"))):
            filled[name] = json.loads(json.dumps(below["default"]))
    for name, item in filled.items():
        below = known.get(name, others)
        if isinstance(below, dict):
            filled[name] = default(item, below)
    return filled


def faults(value: Any, schema: Schema, old: Any = None, path: str = "") -> Iterator[Cause]:
    """What is wrong with *value*; *old* is what it replaces, for rules about changes."""
    where = path or "<nil>"
    if value is None and schema.get("nullable"):
        return
    wrong_type = _type_fault(value, schema, where)
    if wrong_type:
        yield wrong_type
        return
    yield from _value_faults(value, schema, where)
    below = list(_below(value, schema, old, path))
    for item, item_schema, item_old, item_path in below:
        yield from faults(item, item_schema, item_old, item_path)
    for message in rules.broken(schema.get("x-kubernetes-validations", ()), value, old):
        yield Cause(where, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {message}")


def _below(value: Any, schema: Schema, old: Any, path: str) -> Iterator[tuple[Any, Schema, Any, str]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield item, schema.get("items", {}), _matching(item, old, schema), f"{path}[{index}]"
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            item_schema = known.get(name, others)
            if isinstance(item_schema, dict) and (path or name not in _OF_OBJECT):
                before = old.get(name) if isinstance(old, dict) else None
                yield item, item_schema, before, f"{path}.{name}" if path else name


def _matching(item: Any, old: Any, schema: Schema) -> Any:
    """The element of the list *old* with the keys of *item*; lists without keys have no such thing."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if not keys or not isinstance(old, list) or not isinstance(item, dict):
        return None
    wanted = [item.get(key) for key in keys]
    return next((each for each in old if [each.get(key) for key in keys] == wanted), None)


def _type_fault(value: Any, schema: Schema, where: str) -> Cause | None:
    if schema.get("x-kubernetes-int-or-string"):
        fits, wanted = isinstance(value, (int, str)) and not isinstance(value, bool), "integer,string"
    elif (wanted := schema.get("type", "")) == "":
        return None
    else:
        fits = isinstance(value, _TYPES[wanted]) and (wanted == "boolean" or not isinstance(value, bool))
    if fits:
        return None
    given = _type_name(value)
    message = f'Invalid value: "{given}": {where} in body must be of type {wanted}: "{given}"'
    return Cause(where, "FieldValueTypeInvalid", message)


def _value_faults(value: Any, schema: Schema, where: str) -> Iterator[Cause]:
    shown = _shown(value)
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(json.dumps(each) for each in schema["enum"])
        yield Cause(where, "FieldValueNotSupported", f"Unsupported value: {shown}: supported values: {allowed}")
    for limit, broken, words in _limits(value, schema):
        if broken:
            yield Cause(where, "FieldValueInvalid", f"Invalid value: {shown}: {where} in body should {words} {limit}")
    if isinstance(value, str) and schema.get("format") == "date-time" and not _DATE_TIME.fullmatch(value):
        yield Cause(where, "FieldValueInvalid", f"Invalid value: {shown}: {where} in body must be of type date-time")
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield Cause(f"{where}.{name}" if where != "<nil>" else name, "FieldValueRequired", "Required value")
    if isinstance(value, list):
        yield from _duplicates(value, schema, where)


def _limits(value: Any, schema: Schema) -> Iterator[tuple[Any, bool, str]]:
    if isinstance(value, str):
        if "pattern" in schema:
            yield f"'{schema['pattern']}'", not re.search(schema["pattern"], value), "match"
        yield schema.get("minLength"), len(value) < schema.get("minLength", 0), "be at least in chars long"
        yield schema.get("maxLength"), len(value) > schema.get("maxLength", len(value)), "be at most in chars long"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield schema.get("minimum"), value < schema.get("minimum", value), "be greater than or equal to"
        yield schema.get("maximum"), value > schema.get("maximum", value), "be less than or equal to"
    elif isinstance(value, list):
        yield schema.get("minItems"), len(value) < schema.get("minItems", 0), "have a number of items of at least"


def _duplicates(value: list[Any], schema: Schema, where: str) -> Iterator[Cause]:
    kind = schema.get("x-kubernetes-list-type")
    if kind not in {"map", "set"}:
        return
    keys, seen = schema.get("x-kubernetes-list-map-keys", []), []
    for index, item in enumerate(value):
        key = {name: item.get(name) for name in keys} if kind == "map" and isinstance(item, dict) else item
        if key in seen:
            yield Cause(f"{where}[{index}]", "FieldValueDuplicate", f"Duplicate value: {json.dumps(key)}")
        seen.append(key)


def _shown(value: Any) -> str:
    return f'"{_type_name(value)}"' if isinstance(value, (dict, list)) else json.dumps(value)


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return next(name for name, types in _TYPES.items() if isinstance(value, types))
