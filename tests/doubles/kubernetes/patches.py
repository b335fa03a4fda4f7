"""Merge patch (RFC 7396) and JSON patch (RFC 6902)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tests.doubles.kubernetes.refusal import Refusal, bad_request

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def patched(item: dict[str, Any], patch: Any, content_type: str, *, is_custom: bool) -> dict[str, Any]:
    """*item* as *patch* leaves it.

    :raises Refusal: 400 for a patch of the wrong form, 415 for a kind of patch that the object does not take.
    """
    if content_type == JSON:
        if not isinstance(patch, list):
            raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
        return _json_patched(item, patch)
    if content_type == MERGE or (content_type == STRATEGIC and not is_custom):
        if not isinstance(patch, dict):
            raise bad_request("json: cannot unmarshal array into Go value of type map[string]interface {}")
        return merged(item, patch)
    taken = ", ".join([JSON, MERGE, APPLY] if is_custom else [JSON, MERGE, STRATEGIC, APPLY])
    message = f"the body of the request was in an unknown format - accepted media types include: {taken}"
    raise Refusal(415, "UnsupportedMediaType", message)


def merged(item: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(item) if isinstance(item, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def _json_patched(item: dict[str, Any], patch: list[Any]) -> dict[str, Any]:
    holder = {"": copy.deepcopy(item)}
    for step in patch:
        try:
            _take(holder, step)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"the server rejected our request due to an error in our request: {step}: {error!r}"
            raise Refusal(422, "Invalid", message) from error
    return holder[""]


def _take(holder: dict[str, Any], step: Mapping[str, Any]) -> None:
    where, name = _find(holder, step["path"])
    match step["op"]:
        case "add":
            _put(where, name, copy.deepcopy(step["value"]), insert=True)
        case "replace":
            _at(where, name)
            _put(where, name, copy.deepcopy(step["value"]), insert=False)
        case "remove":
            _drop(where, name)
        case "test":
            if _at(where, name) != step["value"]:
                raise ValueError(f"testing value {step['path']} failed")
        case "copy" | "move" as op:
            source, source_name = _find(holder, step["from"])
            value = copy.deepcopy(_at(source, source_name))
            if op == "move":
                _drop(source, source_name)
            _put(where, name, value, insert=True)
        case other:
            raise ValueError(f"Unexpected kind: {other}")


def _find(holder: Any, pointer: str) -> tuple[Any, str]:
    """The container that the last part of *pointer* is in, and that part."""
    *parts, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")]
    for part in parts:
        holder = _at(holder, part)
    return holder, last


def _at(where: Any, name: str) -> Any:
    return where[int(name)] if isinstance(where, list) else where[name]


def _put(where: Any, name: str, value: Any, *, insert: bool) -> None:
    if not isinstance(where, list):
        where[name] = value
    elif name == "-":
        where.append(value)
    elif insert:
        where.insert(int(name), value)
    else:
        where[int(name)] = value


def _drop(where: Any, name: str) -> None:
    if isinstance(where, list):
        del where[int(name)]
    else:
        del where[name]
