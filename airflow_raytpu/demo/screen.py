"""The live view: a table on a terminal, timestamped lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from airflow_raytpu.demo.watch import TaskView

QUIET_LIMIT_S = 20.0
"""Longest silence of the lines while something runs."""

_PROGRESS_EVERY_S = 5.0
_BAR_WIDTH = 24
_LOOKS = {
    "success": ("✓", "green"),
    "failed": ("✗", "red"),
    "upstream_failed": ("✗", "red"),
    "skipped": ("-", "dim"),
    "removed": ("-", "dim"),
    "running": ("●", "cyan"),
    "deferred": ("●", "cyan"),
    "up_for_retry": ("●", "yellow"),
    "restarting": ("●", "yellow"),
}
_WAITING = ("○", "dim")


class Screen(Protocol):
    """Where a demo shows itself."""

    def say(self, text: str) -> None:
        """One line that stays."""
        ...

    def show(self, title: str, tasks: list[TaskView]) -> None:
        """What is going on now."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_screen(console: Console) -> Screen:
    # Asked of the file itself: FORCE_COLOR and the like make rich take anything for a terminal.
    return TableScreen(console) if console.file.isatty() and not console.is_dumb_terminal else LineScreen(console)


class TableScreen:
    """A table that redraws itself in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4)

    def say(self, text: str) -> None:
        self._console.print(Text(text))

    def show(self, title: str, tasks: list[TaskView]) -> None:
        self._live.update(Group(Text(title, style="bold"), table(tasks)))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._live.stop()


class LineScreen:
    """A line for each change, and one at least every twenty seconds.

    :param clock: seconds, as :func:`time.monotonic` gives them.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._states: dict[str, str] = {}
        self._notes: dict[str, tuple[str, float]] = {}
        self._title = ""
        self._said_at = clock()

    def say(self, text: str) -> None:
        self._said_at = self._clock()
        stamp = datetime.now().astimezone().strftime("%H:%M:%S")
        for line in text.splitlines():
            self._console.print(Text(f"{stamp}  {line}"), soft_wrap=True)

    def show(self, title: str, tasks: list[TaskView]) -> None:
        if title != self._title:
            self._title = title
            self.say(title)
        for task in tasks:
            self._show_task(task)
        if self._clock() - self._said_at >= QUIET_LIMIT_S:
            active = [f"{task.task_id} {clock_text(task.elapsed_s)}" for task in tasks if task.active]
            self.say(f"still at it: {', '.join(active) or title}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass

    def _show_task(self, task: TaskView) -> None:
        if task.state and task.state != self._states.get(task.task_id) and (task.active or task.ended):
            took = f" after {clock_text(task.elapsed_s)}" if task.ended else ""
            self.say(f"{task.task_id:<10} {task.state}{took}")
        self._states[task.task_id] = task.state
        note, (last, at) = task.note(), self._notes.get(task.task_id, ("", -_PROGRESS_EVERY_S))
        if task.active and note and note != last and self._clock() - at >= _PROGRESS_EVERY_S:
            self._notes[task.task_id] = (note, self._clock())
            self.say(f"{task.task_id:<10} {note}")


def table(tasks: list[TaskView]) -> RenderableType:
    """One row a task: mark, name, time, bar, words."""
    rows = Table.grid(padding=(0, 1))
    for column in ({"width": 1}, {"no_wrap": True}, {"justify": "right", "min_width": 5}, {}, {"ratio": 1}):
        rows.add_column(**column)
    for task in tasks:
        mark, style = _LOOKS.get(task.state, _WAITING)
        rows.add_row(
            Text(mark, style),
            Text(task.task_id, style),
            Text(clock_text(task.elapsed_s) if task.state in _LOOKS else "", "dim"),
            _bar(task),
            Text(task.note() or ("" if task.ended else task.state), "dim", overflow="ellipsis"),
        )
    return rows


def clock_text(seconds: float) -> str:
    """``3:07``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _bar(task: TaskView) -> RenderableType:
    word = task.progress
    if word is None or not word.total:
        return ""
    return ProgressBar(
        total=word.total, completed=word.total if task.state == "success" else word.done, width=_BAR_WIDTH
    )
