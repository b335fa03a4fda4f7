"""Reading an object of the Kubernetes API, which may hold less than it should, or what somebody else wrote. Pure.

Nothing here raises: what is missing or of another type reads as empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Object = Mapping[str, Any]

LINE_LIMIT = 300
"""Longest words of others, in characters, inside a line of ours."""


def at(obj: Any, *path: str) -> Any:
    """What is found along *path*; ``None`` where the way ends."""
    for key in path:
        # Asking an abstract class is slow, and a watch's store is read often.
        if type(obj) is not dict and not isinstance(obj, Mapping):
            return None
        obj = obj.get(key)
    return obj


def part(obj: Any, *path: str) -> Object:
    found = at(obj, *path)
    return found if type(found) is dict or isinstance(found, Mapping) else {}


def parts(obj: Any, *path: str) -> list[Object]:
    found = at(obj, *path)
    if not isinstance(found, list):
        return []
    return [each for each in found if type(each) is dict or isinstance(each, Mapping)]


def text(obj: Any, *path: str) -> str:
    found = at(obj, *path)
    return found if isinstance(found, str) else ""


def number(obj: Any, *path: str, default: int = 0) -> int:
    """A whole number, also one written as text, as quantities and labels are."""
    found = at(obj, *path)
    if isinstance(found, int) and not isinstance(found, bool):
        return found
    plain = isinstance(found, str) and len(found) < 12 and found.isascii() and found.isdigit()
    return int(found) if plain else default


def moment(obj: Any, *path: str) -> float:
    """A time as Kubernetes writes it (RFC 3339), in seconds since the epoch; 0 where there is none."""
    try:
        when = datetime.fromisoformat(text(obj, *path))
        return max(0.0, (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def line(words: str, limit: int = LINE_LIMIT) -> str:
    """*words* made fit for one line of a log: no control or direction characters, one space between words, bounded."""
    # The rest is cut before it is looked at: an event's message may be of any length.
    plain = "".join(char if char.isprintable() else " " for char in words[: 4 * limit])
    plain = " ".join(plain.split())
    return plain if len(plain) <= limit else plain[: limit - 4].rstrip() + " ..."


def name(obj: Any) -> str:
    return text(obj, "metadata", "name")


def uid(obj: Any) -> str:
    return text(obj, "metadata", "uid")


def created(obj: Any) -> float:
    return moment(obj, "metadata", "creationTimestamp")


def going(obj: Any) -> bool:
    """It is being deleted."""
    return bool(text(obj, "metadata", "deletionTimestamp"))


def behind(obj: Any) -> bool:
    """The status speaks of an older specification than the one that stands there."""
    return number(obj, "status", "observedGeneration") < number(obj, "metadata", "generation")


def owned_by(obj: Any, uids: set[str]) -> bool:
    return any(text(owner, "uid") in uids for owner in parts(obj, "metadata", "ownerReferences"))


def belongs(obj: Any, owner: Any) -> bool:
    """It is not somebody else's, such as that of an earlier *owner* of the same name."""
    return not parts(obj, "metadata", "ownerReferences") or owned_by(obj, {uid(owner)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One entry of ``status.conditions``.

    :param holds: ``None`` where it is neither true nor false.
    :param since: when it last changed, in seconds since the epoch.
    """

    holds: bool | None = None
    reason: str = ""
    message: str = ""
    since: float = 0.0


def condition(obj: Any, kind: str) -> Condition:
    """The condition *kind*; an empty one where there is none."""
    for each in parts(obj, "status", "conditions"):
        if text(each, "type") == kind:
            return Condition(
                holds={"True": True, "False": False}.get(text(each, "status")),
                reason=text(each, "reason"),
                message=text(each, "message"),
                since=moment(each, "lastTransitionTime"),
            )
    return Condition()
