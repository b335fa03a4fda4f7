"""Merging what an author states over what we made, as ``kubectl patch`` would: named things by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from airflow_raytpu.model.errors import ManifestError

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "workerGroupSpecs": "groupName",
    "tolerations": "key",
    "hostAliases": "ip",
}
"""By what the elements of a list are told apart; a list that is not here is replaced as a whole."""

_WHOLE = ("env", "volumes", "tolerations", "hostAliases")
"""Lists whose elements are one thing each: a value and a secret, or two kinds of volume, do not mix."""


def merge(base: Any, over: Any, path: str = "") -> Any:
    """*base* with *over* on top; neither is changed. ``None`` removes what is there.

    :raises ManifestError: a named list holds something without a name.
    """
    if not isinstance(over, Mapping):
        return deepcopy(over)
    merged = dict(base) if isinstance(base, Mapping) else {}
    for name, value in over.items():
        where = f"{path}.{name}".lstrip(".")
        if value is None:
            merged.pop(name, None)
        elif name in _KEYS and isinstance(value, list):
            before = merged.get(name)
            merged[name] = _lists(before if isinstance(before, list) else [], value, name, where)
        else:
            merged[name] = merge(merged.get(name), value, where)
    return merged


def _lists(base: list[Any], over: list[Any], name: str, path: str) -> list[Any]:
    key = _KEYS[name]
    nameless = [each for each in base if not isinstance(each, Mapping) or key not in each]
    merged = {each[key]: each for each in base if each not in nameless}
    for index, each in enumerate(over):
        if not isinstance(each, Mapping) or not isinstance(each.get(key), str | int):
            raise ManifestError(f"{path}[{index}] has no {key}.", f"Give it {key}: by it the list is merged with ours.")
        before = None if name in _WHOLE else merged.get(each[key])
        merged[each[key]] = merge(before, each, f"{path}[{each[key]}]")
    return [*merged.values(), *nameless]
