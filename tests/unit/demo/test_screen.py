from __future__ import annotations

import io

from rich.console import Console

from airflow_raytpu.demo.screen import LineScreen, TableScreen, clock_text, open_screen, table
from airflow_raytpu.demo.watch import TaskView
from airflow_raytpu.model.observation import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _lines() -> tuple[LineScreen, Clock, io.StringIO]:
    text, clock = io.StringIO(), Clock()
    return LineScreen(Console(file=text, width=200), clock), clock, text


def _train(step: int = 0, state: str = "running") -> TaskView:
    word = Progress(request="r", phase="training", at=1.0, done=step, total=100, unit="step")
    return TaskView(task_id="train", state=state, elapsed_s=61.0, progress=word)


def test_changes_are_lines():
    screen, _, text = _lines()
    screen.show("a run", [TaskView(task_id="data", state="running"), TaskView(task_id="query", state="scheduled")])
    screen.show("a run", [TaskView(task_id="data", state="success", elapsed_s=61.0)])
    said = [line.split("  ", 1)[1].rstrip() for line in text.getvalue().splitlines()]
    assert said == ["a run", "data       running", "data       success after 1:01"]


def test_progress_is_told_every_few_seconds_only():
    screen, clock, text = _lines()
    for second in range(11):
        clock.now = float(second)
        screen.show("a run", [_train(second)])
    assert [step for step in range(11) if f"step {step}/100" in text.getvalue()] == [0, 5, 10]


def test_it_is_never_silent_for_longer_than_twenty_seconds():
    screen, clock, text = _lines()
    for second in range(65):
        clock.now = float(second)
        screen.show("a run", [TaskView(task_id="cluster", state="deferred", elapsed_s=clock.now)])
    assert text.getvalue().count("still at it: cluster") == 3


def test_the_table_shows_state_bar_and_words():
    text = io.StringIO()
    Console(file=text, width=120).print(table([_train(50), _train(100, "success"), TaskView(task_id="query")]))
    running, done, waiting = text.getvalue().splitlines()
    assert running.startswith("● train")
    assert "1:01" in running
    assert "step 50/100" in running
    assert done.startswith("✓ train")
    assert waiting.strip() == "○ query"


def test_markup_in_a_message_is_text():
    screen, _, text = _lines()
    screen.say("[RT101] and [/]")
    assert "[RT101] and [/]" in text.getvalue()


def test_a_terminal_gets_the_table():
    console = Console(file=Terminal(), width=100, _environ={"TERM": "xterm"})
    with open_screen(console) as screen:
        assert isinstance(screen, TableScreen)
        screen.show("a run", [_train(1)])
        screen.say("done [x]")
    assert isinstance(open_screen(Console(file=io.StringIO(), force_terminal=True)), LineScreen)


def test_clock_text():
    assert [clock_text(value) for value in (0, 59.9, 60, 3601)] == ["0:00", "0:59", "1:00", "60:01"]
