"""What the server says of itself: its version, its groups and the kinds in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.doubles.kubernetes.kinds import Kind

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0",
    "gitCommit": "0" * 40,
    "gitTreeState": "clean",
    "buildDate": "2026-04-22T00:00:00Z",
    "goVersion": "go1.26.2",
    "compiler": "gc",
    "platform": "linux/amd64",
}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def answer(parts: list[str], kinds: Iterable[Kind]) -> dict[str, Any] | None:
    """The answer to a discovery path, ``None`` where *parts* is none."""
    kinds = list(kinds)
    match parts:
        case ["version"]:
            return VERSION
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            groups = sorted({each.group for each in kinds} - {""})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name, kinds) for name in groups]}
        case ["api", version]:
            return _resources("", version, kinds)
        case ["apis", group] if any(each.group == group for each in kinds):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, kinds)}
        case ["apis", group, version]:
            return _resources(group, version, kinds)
    return None


def _group(name: str, kinds: list[Kind]) -> dict[str, Any]:
    versions = list(dict.fromkeys(version for each in kinds if each.group == name for version in each.versions))
    shown = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": shown, "preferredVersion": shown[0]}


def _resources(group: str, version: str, kinds: list[Kind]) -> dict[str, Any] | None:
    found = [each for each in kinds if each.group == group and version in each.versions]
    if not found:
        return None
    resources: list[dict[str, Any]] = []
    for each in found:
        entry = {"name": each.plural, "singularName": each.kind.lower(), "namespaced": each.namespaced}
        resources.append({**entry, "kind": each.kind, "verbs": _VERBS})
        if each.has_status:
            resources.append({**entry, "name": f"{each.plural}/status", "kind": each.kind, "verbs": ["get", "patch"]})
    api_version = found[0].api_version(version)
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources}
