"""What preflight says: one finding each, with its cause, its lever and its source."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from airflow_raytpu.model import errors

FACTS = "docs/preflight.md"
"""Where each finding's cause, lever and source are written down."""


class Level(enum.Enum):
    """An error cannot work and is refused; a warning may go wrong; a note is good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that preflight found.

    :param code: ``RT110`` and up; :data:`FACTS` explains each.
    :param raises: code of the error that an operator raises for it, where it is an error.
    """

    code: str
    level: Level
    cause: str
    lever: str
    raises: str = errors.RequestError.code

    @property
    def fact(self) -> str:
        """Where its source is."""
        return f"{FACTS}#{self.code.lower()}"

    def error(self) -> errors.RayTpuError:
        return errors.from_code(self.raises, self.cause, self.lever)

    def to_dict(self) -> dict[str, str]:
        return {
            "code": self.code,
            "level": self.level.value,
            "cause": self.cause,
            "lever": self.lever,
            "fact": self.fact,
        }

    def __str__(self) -> str:
        return f"{self.code} {self.cause} {self.lever}".rstrip()


def error(code: str, cause: str, lever: str, raises: type[errors.RequestError] = errors.RequestError) -> Finding:
    return Finding(code=code, level=Level.ERROR, cause=cause, lever=lever, raises=raises.code)


def raised(code: str, found: errors.RequestError) -> Finding:
    """An error that a check of this package raised, as the finding *code*."""
    return Finding(code=code, level=Level.ERROR, cause=found.cause, lever=found.lever, raises=found.code)


def warning(code: str, cause: str, lever: str) -> Finding:
    return Finding(code=code, level=Level.WARNING, cause=cause, lever=lever)


def note(code: str, cause: str, lever: str = "") -> Finding:
    return Finding(code=code, level=Level.NOTE, cause=cause, lever=lever)


def span(seconds: float) -> str:
    """``90 s``, ``20 min``, ``24 h``, ``7 d``."""
    for least, size, unit in ((172800, 86400, "d"), (3600, 3600, "h"), (120, 60, "min")):
        if seconds >= least:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
