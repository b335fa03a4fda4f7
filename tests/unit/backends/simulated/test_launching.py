"""Launches of Ray nodes that go wrong, with launchers that are played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_raytpu.backends.simulated import launching, nodes
from airflow_raytpu.backends.simulated.launching import Fleet, Key
from airflow_raytpu.backends.simulated.nodes import NodePlan, NotUpError
from airflow_raytpu.model.errors import ClusterError

UP = {"raylet": 7}
BROKEN = {"error": "no memory"}


@dataclass
class Process:
    pid: int
    living: bool = True
    signals: list[int] = field(default_factory=list)

    def alive(self) -> bool:
        return self.living

    def signal(self, number: int) -> bool:
        self.signals.append(number)
        return self.living


@dataclass
class Launcher:
    """Says *reports* one after the other, the last for ever."""

    plan: NodePlan
    process: Process
    reports: list[dict[str, Any] | None]
    closed: int = 0

    def report(self) -> dict[str, Any] | None:
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]

    def close(self) -> None:
        self.closed += 1


class Machine:
    """Plays the launchers: each launch of a node takes the next of what is said there of *reports*.

    :ivar up: what the fleet told of.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **reports: list[list[dict[str, Any] | None]]) -> None:
        self.reports = reports
        self.launched: list[Launcher] = []
        self.up: list[tuple[Key | None, int, str]] = []
        self.at_tick: Callable[[int], None] = lambda number: None
        self.ticks = 0
        self.fleet = Fleet(self.tick, lambda key, launcher, raylet, words: self.up.append((key, launcher.pid, words)))
        monkeypatch.setattr(nodes, "launch", self.launch)
        monkeypatch.setattr(launching, "end", lambda find, within_s: [])

    def launch(self, plan: NodePlan) -> Launcher:
        made = Launcher(plan, Process(100 + len(self.launched)), self.reports[plan.ip].pop(0))
        self.launched.append(made)
        return made

    def tick(self, wait_s: float) -> None:
        self.ticks += 1
        assert self.ticks < 1000, "it waits for ever"
        self.at_tick(self.ticks)


def plan(ip: str, tmp_path: Path) -> NodePlan:
    return NodePlan(ip=ip, temp=tmp_path / ip, gcs="127.0.0.1:1", cpus=1, object_store=1)


def test_all_come_up_and_each_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, head=[[None, UP]], host=[[None, None, UP]])
    machine.fleet.bring_up([(None, plan("head", tmp_path)), ((0, 0), plan("host", tmp_path))])
    assert machine.up == [(None, 100, "1 of 2 Ray nodes up"), ((0, 0), 101, "2 of 2 Ray nodes up")]
    assert machine.fleet.slices() == {0}
    assert machine.fleet.without({101, 999}) == [(0, 0)]
    assert machine.fleet.slices() == set()
    with pytest.raises(ClusterError, match="head died"):
        machine.fleet.without({100})


def test_one_that_does_not_start_is_launched_again_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(monkeypatch, host=[[BROKEN], [None, BROKEN], [UP]])
    machine.fleet.bring_up([((0, 0), plan("host", tmp_path))])
    assert machine.up == [((0, 0), 102, "1 of 1 Ray nodes up")]
    machine = Machine(monkeypatch, host=[[BROKEN]] * 4)
    with pytest.raises(NotUpError, match="no memory"):
        machine.fleet.bring_up([((0, 0), plan("host", tmp_path))])
    assert len(machine.launched) == 3


def test_what_is_left_of_one_that_did_not_start_is_the_cause_that_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(monkeypatch, host=[[BROKEN]], other=[[None]])

    def end(find: Any, within_s: float) -> list[Process]:
        machine.launched[0].process.living = False
        # The launcher ends, and one of its agents does not.
        return [Process(4242)] if find.__code__.co_freevars == ("temp",) else []

    monkeypatch.setattr(launching, "end", end)
    with pytest.raises(NotUpError, match="4242"):
        machine.fleet.bring_up([((0, 0), plan("host", tmp_path)), ((0, 1), plan("other", tmp_path))])
    assert machine.launched[0].closed == 1
    assert machine.fleet.without({101}) == [(0, 1)], "what still lives is heard of when it ends"


def test_one_that_died_before_anybody_read_that_it_was_up_is_launched_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(monkeypatch, head=[[None, UP], [UP]], host=[[None, UP], [UP]])

    def die(number: int) -> None:
        if number == 1:
            for launcher in machine.launched:
                launcher.process.living = False
            # While a node is launched, its end is for its own words to say.
            assert machine.fleet.without({100, 101}) == []

    machine.at_tick = die
    machine.fleet.bring_up([(None, plan("head", tmp_path)), ((0, 0), plan("host", tmp_path))])
    assert sorted((pid, words) for _, pid, words in machine.up) == [
        (102, "1 of 2 Ray nodes up"),
        (103, "2 of 2 Ray nodes up"),
    ]


def test_a_machine_that_can_fork_no_more_is_a_node_that_is_not_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(monkeypatch, host=[[None]])

    def launch(plan: NodePlan) -> Launcher:
        if machine.launched:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return machine.launch(plan)

    monkeypatch.setattr(nodes, "launch", launch)
    with pytest.raises(NotUpError, match="temporarily unavailable"):
        machine.fleet.bring_up([((0, 0), plan("host", tmp_path)), ((0, 1), plan("other", tmp_path))])
    assert machine.fleet.slices() == {0}
