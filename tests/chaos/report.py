"""What is printed: a line for each round, the evidence of one that lost something, and the table at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.chaos.checks import Losses
from tests.chaos.draw import Fault
from tests.chaos.play import Facts

_LINES = 25
COLUMNS = {
    "orphans": "orphans",
    "duplicates": "duplicates",
    "wrong verdicts": "verdicts",
    "steps lost": "steps",
    "rows lost": "rows",
    "false kills": "kills",
    "long silences": "silences",
    "retries consumed": "retries",
}


@dataclass(frozen=True, slots=True)
class Result:
    facts: Facts
    losses: Losses

    @property
    def tried(self) -> bool:
        return self.facts.struck is not None


def line(result: Result, done: int, count: int, began: float) -> str:
    facts, losses = result.facts, result.losses
    plan, task = facts.plan, facts.task
    outcome = f"{task.state if task else 'deleted'} in {facts.ended - facts.began:.0f} s"
    outcome += f", try {task.tries}" if task and task.tries > 1 else ""
    outcome += f", {losses.redone} steps redone" if losses.redone else ""
    outcome += f", back after {losses.recovery_s:.0f} s" if losses.recovery_s else ""
    fault = plan.fault.value if result.tried else f"{plan.fault.value} (missed: {facts.missed})"
    verdict = "LOST " + "; ".join(" ".join(each.split()) for each in losses.all()) if losses.all() else "ok"
    left = (time.time() - began) / done * (count - done)
    waits = "triggerer" if plan.deferrable else "worker"
    cells = [
        f"{plan.number:>3} {plan.operator} on {plan.slice}, {waits}",
        *(fault, str(plan.moment), outcome, verdict),
        f"{done}/{count}, {left / 60:.0f} min left",
    ]
    return " | ".join(cells)


def evidence(result: Result) -> str:
    """What a person needs to understand a round that lost something."""
    facts = result.facts
    at = facts.struck.at if facts.struck else facts.began
    lines = [
        f"    began {_clock(facts.began)}, ended {_clock(facts.ended)}, fault {_clock(at)}: "
        + (facts.struck.what if facts.struck else facts.missed)
    ]
    for start in facts.starts:
        gone = facts.died.get(start.began)
        lines.append(
            f"    pid {start.pid} from {_clock(start.began)} to {_clock(start.last_at)}, steps "
            f"{start.steps[0][0] if start.steps else '-'} to {start.step}{', done' * start.done}"
            f"{f', gone {_clock(gone)}' if gone else ''}"
        )
    lines += [f"    Ray: {name} {job['status']} {job['message'][:120]}" for name, job in facts.jobs.items()]
    told = [
        f"    {_clock(when)} {level} {' / '.join(text.splitlines())[:300]}"
        for when, level, text in facts.log
        if level != "debug"
    ]
    if len(told) > 2 * _LINES:
        told = [*told[:_LINES], "    ...", *told[-_LINES:]]
    return "\n".join([*lines, *told])


def table(results: Sequence[Result]) -> str:
    """Fault by fault, as Markdown."""
    heads = ["fault", "tried", "missed", *COLUMNS, "tries beyond us", "most steps redone", "worst recovery, s"]
    rows = [_row(fault.value, [each for each in results if each.facts.plan.fault is fault]) for fault in Fault]
    rows.append(_row("all", results))
    return "\n".join(["| " + " | ".join(row) + " |" for row in [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]])


def _row(name: str, results: Sequence[Result]) -> list[str]:
    tried = [each for each in results if each.tried]
    counts = [sum(len(getattr(each.losses, field)) for each in results) for field in COLUMNS.values()]
    return [
        name,
        str(len(tried)),
        str(len(results) - len(tried)),
        *map(str, counts),
        str(sum(each.losses.beyond for each in results)),
        str(max((each.losses.redone for each in results), default=0)),
        f"{max((each.losses.recovery_s for each in tried), default=0.0):.0f}",
    ]


def summary(results: Sequence[Result], seed: int, began: float) -> str:
    named = ", ".join(f"{name} {version(name)}" for name in ("apache-airflow", "ray", "jax"))
    lost = sum(bool(each.losses.all()) for each in results)
    about = [
        f"seed {seed}, {len(results)} rounds in {(time.time() - began) / 60:.0f} min, {lost} of them with a loss",
        f"{datetime.now(UTC):%Y-%m-%d}, commit {_commit()}, Python {sys.version.split()[0]}, {named}",
        f"{os.cpu_count()} cores, load {', '.join(f'{load:.1f}' for load in os.getloadavg())} at the end",
    ]
    return "\n".join([table(results), "", *about])


def _commit() -> str:
    here = Path(__file__).parent
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=here, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "none"


def _clock(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%H:%M:%S}.{int(moment % 1 * 10)}"
