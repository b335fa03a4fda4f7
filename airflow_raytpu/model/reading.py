"""JSON into frozen values, with an error that names the key and the nearest one that exists."""

from __future__ import annotations

import difflib
import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar, cast

from airflow_raytpu.model.errors import RequestError

_T = TypeVar("_T")

_KINDS: dict[str, tuple[type[Any] | tuple[type[Any], ...], str]] = {
    "str": (str, "text"),
    "bool": (bool, "true or false"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "Mapping": (Mapping, "an object"),
    "Sequence": ((list, tuple), "a list"),
}


def kinds_of(kind: type[Any]) -> dict[str, str]:
    """The fields of a dataclass and their annotations, as text."""
    return {each.name: str(each.type) for each in fields(kind)}


def record(where: str, kind: type[_T], value: Any) -> _T:
    """*value* as the dataclass *kind*, whose fields are plain values.

    :param where: what the value is called, for the error.
    :raises RequestError: no object, an unknown or missing key, or a value of the wrong kind.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise wrong(where, value, "an object")
    kinds, described = kinds_of(kind), cast("Any", kind)
    found = {known(key, list(kinds), where): plain(f"{where}.{key}", kinds[key], each) for key, each in value.items()}
    due = [each.name for each in fields(described) if each.default is each.default_factory is MISSING]
    missing = [name for name in due if name not in found]
    if missing:
        raise RequestError(f"{where} lacks {' and '.join(missing)}.", f"It has {', '.join(kinds)}.")
    return kind(**found)


def newer(where: str, kind: type[_T], value: Any) -> _T:
    """*value* as the dataclass *kind*, as it stands in a file that a newer release may have written, or a bad disk.

    Unknown keys are left aside; what is known must be whole.

    :raises RequestError: as :func:`record`, or a number that is none.
    """
    if isinstance(value, Mapping):
        names = kinds_of(kind)
        value = {key: each for key, each in value.items() if key in names}
        for key, each in value.items():
            if isinstance(each, float) and not math.isfinite(each):
                raise wrong(f"{where}.{key}", each, "a finite number")
    return record(where, kind, value)


def records(where: str, kind: type[_T], value: Any) -> tuple[_T, ...]:
    """A list of *kind*, as :func:`record`."""
    return tuple(record(f"{where}[{index}]", kind, each) for index, each in enumerate(listed(where, value)))


def plains(where: str, kind: str, value: Any) -> tuple[Any, ...]:
    """A list of plain values, as :func:`plain`."""
    return tuple(plain(f"{where}[{index}]", kind, each) for index, each in enumerate(listed(where, value)))


def listed(where: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise wrong(where, value, "a list")
    return value


def plain(where: str, kind: str, value: Any) -> Any:
    """*value*, checked against an annotation such as ``"int | None"`` or ``"Mapping[str, str]"``.

    :raises RequestError: it is of another kind. Nothing is turned into another kind but a whole number into a float.
    """
    if value is None and kind.endswith("None"):
        return None
    wanted, words = _KINDS[kind.partition(" ")[0].partition("[")[0]]
    truth = isinstance(value, bool)
    if wanted is float and isinstance(value, int) and not truth:
        return float(value)
    if not isinstance(value, wanted) or (truth and wanted is not bool):
        raise wrong(where, value, words)
    if kind.startswith("Mapping[str, str]"):
        for key, each in value.items():
            if not isinstance(key, str) or not isinstance(each, str):
                raise wrong(f"{where}[{key!r}]", each, "text; quote numbers and booleans")
    return value


def member(where: str, kind: type[enum.Enum], value: Any) -> Any:
    """The member of *kind* whose value it is.

    :raises RequestError: there is none.
    """
    values = {each.value: each for each in kind}
    return value if isinstance(value, kind) else values[known(value, list(values), where)]


def known(name: Any, names: Sequence[str], where: str) -> str:
    """*name*, which is one of *names*.

    :raises RequestError: it is not; the error says which is nearest.
    """
    if name in names:
        return str(name)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    lever = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names)}."
    raise RequestError(f"{where} has no {name!r}.", lever)


def wrong(where: str, value: Any, words: str) -> RequestError:
    return RequestError(f"{where} is {value!r}, of type {type(value).__name__}.", f"Give it {words}.")
