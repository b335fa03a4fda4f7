"""The last line of a job that succeeded: what came out, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_raytpu.model.goodput import Goodput


def closing(value: Mapping[str, Any]) -> str:
    """``done: ...``, from what the task returns."""
    if "goodput" in value:
        return f"done: {_trained(value)}"
    return "done: " + ", ".join(f"{name} {each}" for name, each in value.items())


def _trained(value: Mapping[str, Any]) -> str:
    """``step 2,000, loss 0.180, best 1,800; 1 eviction, 0 failures; 3.4 chip-hours, 91 % useful (compile 4 %)``."""
    reached = [f"step {value['step']:,}", *(f"{name} {number:.3g}" for name, number in value["metrics"].items())]
    if value.get("best_step") is not None:
        reached.append(f"best {value['best_step']:,}")
    restarts = [_count(value["evictions"], "eviction"), _count(value["failures"], "failure")]
    costs = [f"{value['chip_hours']:.2g} chip-hours", Goodput.from_dict(value["goodput"]).describe()]
    return "; ".join(", ".join(part) for part in (reached, restarts, costs))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
