"""What one check found, with its cause, its lever and the commands that apply it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

FILES = "docs/kubernetes"
"""Where the files lie that commands name."""


class Level(enum.Enum):
    """An error keeps requests from running; a warning may, or could not be seen."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one check found.

    :param check: what was looked at, in a word or two.
    :param says: what is so, with the number that matters.
    :param lever: what the reader can do about it.
    :param apply: shell commands for that, in order; each fits a line of 76 columns, or is broken by backslashes.
    """

    check: str
    level: Level
    says: str
    lever: str = ""
    apply: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "level": self.level.value,
            "says": self.says,
            "lever": self.lever,
            "apply": list(self.apply),
        }


def ok(check: str, says: str) -> Found:
    return Found(check=check, level=Level.OK, says=says)


def warning(check: str, says: str, lever: str = "", *apply: str) -> Found:
    return Found(check=check, level=Level.WARNING, says=says, lever=lever, apply=apply)


def error(check: str, says: str, lever: str, *apply: str) -> Found:
    return Found(check=check, level=Level.ERROR, says=says, lever=lever, apply=apply)


def many(count: int, what: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count} {what}{'s' * (count != 1)}"


def unseen(check: str, what: str, right: str) -> Found:
    """RBAC does not let the doctor look, which is no fault of the place."""
    return warning(
        check,
        f"{what} could not be seen: no right to {right}.",
        "Only the doctor asks for it; doctor-role.yaml grants it.",
        f"kubectl apply -f {FILES}/doctor-role.yaml",
    )
