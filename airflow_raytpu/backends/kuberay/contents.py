"""What a watch has shown of one kind of object, and who waits for a change of which part of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str]
"""What can be waited for: ``("", name)``, or a label and its value."""

_KEPT_MARKS = 20_000
_KEPT_GRAVES = 2_000
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

INVOLVED = "involvedObject.name"
"""Stands for a label on Events, which have none that says what they are about."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, as one waiter remembers it."""

    key: Key
    version: int
    faults: int


class Contents:
    """Objects by name and by label, changed by one writer, read and waited for by many.

    :param wanted: which objects are kept at all.
    :param most: how many; the ones that changed longest ago are dropped first.
    """

    def __init__(self, wanted: Callable[[Object], bool] | None = None, most: int | None = None) -> None:
        self._wanted = wanted
        self._most = most
        self._objects: dict[str, Object] = {}
        self._groups: dict[str, dict[str, dict[str, Object]]] = {}
        self._graves: dict[str, Object] = {}
        self._listed = _grave("")
        self._ahead: dict[str, Object] = {}
        self._version = 0
        self._faults = 0
        self._floor = 0
        self._changes: dict[Key, int] = {}
        self._waiting: dict[Key, set[asyncio.Future[None]]] = {}

    def get(self, name: str) -> Object | None:
        return self._objects.get(name)

    def items(self) -> list[Object]:
        return list(self._objects.values())

    def of(self, label: str, value: str) -> list[Object]:
        """Those whose *label* is *value*."""
        return list(self._group(label).get(value, {}).values())

    def mark(self, key: Key) -> Mark:
        """Take it before reading; :meth:`changed` then misses nothing that comes after."""
        if key[0]:
            self._group(key[0])
        return Mark(key, self._version, self._faults)

    async def changed(self, mark: Mark) -> None:
        """Until what *mark* is about differs from then, or a fault was told since. Costs nothing meanwhile."""
        if self._changes.get(mark.key, self._floor) > mark.version or self._faults > mark.faults:
            return
        waiter = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(mark.key, set())
        waiting.add(waiter)
        try:
            await waiter
        finally:
            waiting.discard(waiter)
            if not waiting and self._waiting.get(mark.key) is waiting:
                del self._waiting[mark.key]

    def wake_all(self) -> None:
        """A fault that concerns everybody."""
        self._faults += 1
        for waiting in self._waiting.values():
            _wake(waiting)

    def replace(self, objects: Iterable[Object], version: str) -> None:
        """Take over a whole list of *version*: what is not in it is gone."""
        self._graves.clear()
        self._listed = _grave(version)
        ahead = {name: each for name, each in self._ahead.items() if not _old(each, self._listed)}
        self._ahead = ahead
        kept = [each for each in objects if self._wanted is None or self._wanted(each)]
        if self._most is not None:
            kept = sorted(kept, key=_age)[-self._most :]
        found = {_name(each): _trimmed(each) for each in kept} | ahead
        for name in self._objects.keys() - found.keys():
            self._drop(name)
        for name, each in found.items():
            known = self._objects.get(name)
            if known is None or _version(known) != _version(each) or _uid(known) != _uid(each):
                self._put(name, each)

    def put(self, each: Object) -> None:
        """Added or modified; what is older than what is known is passed over."""
        name = _name(each)
        if self._wanted is not None and not self._wanted(each):
            return
        known = self._objects.get(name) or self._graves.get(name) or self._listed
        if not _old(each, known):
            self._graves.pop(name, None)
            self._put(name, _trimmed(each))

    def put_ahead(self, each: Object) -> None:
        """As :meth:`put`, from the answer to a write: a list that was begun before it does not undo it."""
        self.put(each)
        known = self._objects.get(_name(each))
        if known is not None and _version(known) == _version(each):
            self._ahead[_name(each)] = known

    def remove(self, each: Object) -> None:
        """Deleted, as *each* says last."""
        name = _name(each)
        known = self._objects.get(name) or self._graves.get(name) or self._listed
        if _old(each, known) and _version(each) != _version(known):
            return
        self._graves.pop(name, None)
        self._graves[name] = _grave(_version(each))
        if len(self._graves) > _KEPT_GRAVES:
            del self._graves[next(iter(self._graves))]
        if name in self._objects:
            self._drop(name)

    def _put(self, name: str, each: Object) -> None:
        before = self._objects.pop(name, None)
        self._ahead.pop(name, None)
        self._objects[name] = each
        for label, group in self._groups.items():
            _leave(group, _value(before, label), name)
            value = _value(each, label)
            if value is not None:
                group.setdefault(value, {})[name] = each
        self._tell(name, before, each)
        if self._most is not None and len(self._objects) > self._most:
            self._drop(next(iter(self._objects)))

    def _drop(self, name: str) -> None:
        before = self._objects.pop(name)
        self._ahead.pop(name, None)
        for label, group in self._groups.items():
            _leave(group, _value(before, label), name)
        self._tell(name, before)

    def _tell(self, name: str, *states: Object | None) -> None:
        keys = {("", name)}
        for label in self._groups:
            values = (_value(state, label) for state in states)
            keys.update((label, value) for value in values if value is not None)
        self._version += 1
        for key in keys:
            self._changes.pop(key, None)
            self._changes[key] = self._version
            _wake(self._waiting.get(key, ()))
        while len(self._changes) > _KEPT_MARKS:
            self._floor = self._changes.pop(next(iter(self._changes)))

    def _group(self, label: str) -> dict[str, dict[str, Object]]:
        """The objects by *label*'s value, kept up from the first question on."""
        group = self._groups.get(label)
        if group is None:
            group = self._groups[label] = {}
            for name, each in self._objects.items():
                value = _value(each, label)
                if value is not None:
                    group.setdefault(value, {})[name] = each
        return group


def _wake(waiting: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiting:
        if not waiter.done():
            waiter.set_result(None)


def _leave(group: dict[str, dict[str, Object]], value: str | None, name: str) -> None:
    members = group.get(value) if value is not None else None
    if members is not None and value is not None:
        members.pop(name, None)
        if not members:
            del group[value]


def _value(each: Object | None, label: str) -> str | None:
    if each is None:
        return None
    if label == INVOLVED:
        return (each.get("involvedObject") or {}).get("name")
    return (_meta(each).get("labels") or {}).get(label)


def _meta(each: Mapping[str, Any]) -> Mapping[str, Any]:
    return each.get("metadata") or {}


def _name(each: Mapping[str, Any]) -> str:
    return str(_meta(each)["name"])


def _version(each: Mapping[str, Any]) -> str:
    return str(_meta(each).get("resourceVersion", ""))


def _uid(each: Mapping[str, Any]) -> str:
    return str(_meta(each).get("uid", ""))


def _grave(version: str) -> Object:
    """What is known of an object that was not there at *version*."""
    return {"metadata": {"resourceVersion": version}}


def _old(each: Object, known: Object) -> bool:
    """Whether *each* says nothing that *known* does not; versions of one kind count upwards (Kubernetes 1.35)."""
    ours, theirs = _version(each), _version(known)
    return int(ours) <= int(theirs) if ours.isdigit() and theirs.isdigit() else ours == theirs


def _age(each: Object) -> int:
    version = _version(each)
    return int(version) if version.isdigit() else 0


def _trimmed(each: Object) -> Object:
    """Without what nobody reads and what is often the larger part."""
    meta = {name: value for name, value in _meta(each).items() if name != "managedFields"}
    if _LAST_APPLIED in (meta.get("annotations") or {}):
        meta["annotations"] = {name: text for name, text in meta["annotations"].items() if name != _LAST_APPLIED}
    return {**each, "metadata": meta}
