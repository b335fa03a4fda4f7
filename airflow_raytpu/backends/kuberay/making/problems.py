"""What is wrong with an object, field by field, and reading one that anybody may have written. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from airflow_raytpu.model.errors import ManifestError

_SHOWN = 6
_LEVER = "Change pod_template, manifest or whole there, or leave the field to us."

_CONTAINER = {"env": [{}], "volumeMounts": [{}], "ports": [{}], "resources": {"limits": {}, "requests": {}}}
_TEMPLATE = {
    "metadata": {"labels": {}, "annotations": {}},
    "spec": {
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "volumes": [{}],
        "tolerations": [{}],
        "nodeSelector": {},
    },
}
_GROUP = {"rayStartParams": {}, "resources": {}, "labels": {}, "template": _TEMPLATE}
_CLUSTER = {"headGroupSpec": _GROUP, "workerGroupSpecs": [_GROUP], "authOptions": {}, "autoscalerOptions": {}}
_SHAPES: dict[str, dict[str, Any]] = {
    "RayCluster": _CLUSTER,
    "RayJob": {"rayClusterSpec": _CLUSTER, "metadata": {}},
    "RayService": {"rayClusterConfig": _CLUSTER, "upgradeStrategy": {}},
}
CLUSTER_FIELD = {"RayCluster": "", "RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}
"""Where the cluster's own spec is, under ``spec``."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One field that breaks a rule.

    :param path: ``spec.workerGroupSpecs[v6e-4x4].numOfHosts``.
    :param found: what it is.
    :param wanted: what it must be, and whose rule that is.
    """

    path: str
    found: Any
    wanted: str

    def __str__(self) -> str:
        found = "not there" if self.found is None else "empty" if self.found in ("", [], {}) else self.found
        return f"{self.path} is {found}; it must be {self.wanted}."


def refuse(problems: Iterable[Problem], lever: str = _LEVER) -> None:
    """:raises ManifestError: there are *problems*; the first ones are in it."""
    found = list(dict.fromkeys(map(str, problems)))
    if not found:
        return
    rest = len(found) - _SHOWN
    more = [f"and {rest} more like these"] if rest > 0 else []
    raise ManifestError("\n  ".join([*found[:_SHOWN], *more]), lever)


def ill_formed(made: Mapping[str, Any]) -> Iterator[Problem]:
    """Fields that rules look into and that are of the wrong kind, so that the rules need not ask."""
    shape = {"metadata": {"labels": {}, "annotations": {}}, "spec": _SHAPES[made["kind"]]}
    yield from _ill_formed("", {"metadata": made.get("metadata"), "spec": made.get("spec")}, shape)


def _ill_formed(path: str, value: Any, shape: Any) -> Iterator[Problem]:
    if value is None:
        return
    if isinstance(shape, list):
        if not isinstance(value, list):
            yield Problem(path, value, "a list")
            return
        for index, each in enumerate(value):
            if each is None:
                yield Problem(f"{path}[{index}]", each, "an object")
            yield from _ill_formed(f"{path}[{index}]", each, shape[0])
    elif not isinstance(value, Mapping):
        yield Problem(path, value, "an object")
    else:
        for name, inner in shape.items():
            yield from _ill_formed(f"{path}.{name}".lstrip("."), value.get(name), inner)


def part(value: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The object below *names*; empty where there is none."""
    for name in names:
        value = value.get(name) or {}
    return value


def items(value: Mapping[str, Any], *names: str) -> list[Mapping[str, Any]]:
    """The list of objects below *names*; empty where there is none."""
    return list(part(value, *names[:-1]).get(names[-1]) or [])


def whole_number(value: Any) -> int | None:
    """A count, as a number or as a quantity's text; ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return int(value) if str(value).isascii() and str(value).isdigit() else None


def read_yaml(text: Any) -> Mapping[str, Any] | None:
    """The object that *text* is as YAML; ``None`` for anything else."""
    try:
        found = yaml.safe_load(text) if isinstance(text, str) else None
    except yaml.YAMLError:
        return None
    return found if isinstance(found, dict) else None
