"""Server-side apply: who has set which field, and what happens when two disagree."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from tests.doubles.kubernetes.kinds import Kind
from tests.doubles.kubernetes.refusal import Cause, Refusal, bad_request, invalid

Path = tuple[str, ...]
_NOT_OWNED = {("apiVersion",), ("kind",)}


class Ownership:
    """Managers of each object's fields by their paths; a list is one field, as in ``atomic`` ones."""

    def __init__(self) -> None:
        self._owners: dict[str, dict[str, set[Path]]] = {}

    def forget(self, uid: str) -> None:
        self._owners.pop(uid, None)

    def updated(self, manager: str, old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        """*manager* has written *new* without apply: it takes over each field that it changed."""
        if not manager:
            return
        before, after = dict(_leaves(old or {})), dict(_leaves(new))
        changed = {path for path, value in after.items() if path not in before or before[path] != value}
        owners = self._owners.setdefault(new["metadata"]["uid"], {})
        for name, fields in owners.items():
            fields.difference_update(changed, before.keys() - after.keys())
            if name == manager:
                fields.update(changed)
        owners.setdefault(manager, changed)

    def applied(self, kind: Kind, manager: str, item: dict[str, Any], wanted: Any, *, force: bool) -> dict[str, Any]:
        """*item* with *wanted* applied.

        :raises Refusal: 409 where another manager has set a field to something else, unless *force* is given.
        """
        check(kind, manager, wanted)
        owners = self._owners.setdefault(item["metadata"]["uid"], {})
        there, asked = dict(_leaves(item)), dict(_leaves(wanted))
        disputed = {
            path: name
            for path, value in asked.items()
            for name, fields in owners.items()
            if name != manager and path in fields and there.get(path) != value
        }
        if disputed and not force:
            raise _dispute(disputed)
        for name, fields in owners.items():
            if name != manager:
                fields.difference_update(disputed)
        result = copy.deepcopy(item)
        for path in owners.get(manager, set()) - asked.keys():
            if not any(path in fields for name, fields in owners.items() if name != manager):
                _remove(result, path)
        for path, value in asked.items():
            _set(result, path, value)
        owners[manager] = set(asked)
        return result


def check(kind: Kind, manager: str, wanted: Any) -> None:
    if not isinstance(wanted, dict):
        raise bad_request("error decoding YAML: the body of an apply must be one object")
    if not manager or manager == "unknown":
        raise invalid(
            kind, "", [Cause("fieldManager", "FieldValueRequired", "Required value: is required for apply patch")]
        )


def _dispute(disputed: dict[Path, str]) -> Refusal:
    shown = [f'conflict with "{name}": .{".".join(path)}' for path, name in disputed.items()]
    count = f"{len(shown)} conflict{'s' if len(shown) > 1 else ''}"
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{name}"', "field": "." + ".".join(path)}
        for path, name in disputed.items()
    ]
    return Refusal(409, "Conflict", f"Apply failed with {count}: {'; '.join(shown)}", details={"causes": causes})


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Every field that a manager may own, with its value as JSON."""
    if isinstance(value, dict) and (value or not path):
        for name, below in value.items():
            inside = (*path, name)
            if inside in _NOT_OWNED or (path == ("metadata",) and name not in {"labels", "annotations", "finalizers"}):
                continue
            if not path and name == "status":
                continue
            yield from _leaves(below, inside)
    elif path:
        yield path, json.dumps(value, sort_keys=True)


def _set(item: dict[str, Any], path: Path, value: str) -> None:
    for name in path[:-1]:
        if not isinstance(item.get(name), dict):
            item[name] = {}
        item = item[name]
    item[path[-1]] = json.loads(value)


def _remove(item: dict[str, Any], path: Path) -> None:
    for name in path[:-1]:
        item = item.get(name, {})
    item.pop(path[-1], None)
