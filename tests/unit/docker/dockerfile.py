"""A Dockerfile as its instructions, as far as ours use the language: comments, continued lines, stages, arguments."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """Operands: of the JSON form, or split at blanks; flags (``--from=x``) are left out."""
        if self.text.startswith("["):
            return [str(word) for word in json.loads(self.text)]
        return [word for word in self.text.split() if not word.startswith("--")]

    @property
    def flags(self) -> dict[str, str]:
        return dict(re.findall(r"(?:^|\s)--([a-z-]+)=(\S+)", self.text)) if not self.text.startswith("[") else {}


def parse(path: Path) -> list[Instruction]:
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, text = line.partition(" ")
        found.append(Instruction(name.upper(), text.strip()))
    return found


def fill(text: str, arguments: dict[str, str]) -> str:
    """``${NAME}`` filled in; a name that is not known is an error, as it would be an empty text in Docker."""
    return re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], text)


def arguments(instructions: list[Instruction]) -> dict[str, str]:
    """Defaults of ``ARG``, quotes taken off."""
    pairs = [each.text.partition("=") for each in instructions if each.name == "ARG"]
    return {name: value.strip('"') for name, _, value in pairs}
