"""When all ranks save, without a collective in each step.

By steps, every rank knows it by itself. By the clock, and on a notice that hosts will be taken away, rank 0 alone
decides: clocks differ, and a notice arrives here sooner than there. About once a second there is a *meeting*, at a step
that was agreed in the meeting before: rank 0 leaves word there and goes on, the others read it when they come to that
step. So nobody waits for anybody but rank 0, whom the next collective would wait for too.

That the loop is to end after the save that comes next, whenever it is due, is said in a meeting as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_raytpu.model.errors import LostError
from airflow_raytpu.model.policies import CheckpointPolicy
from airflow_raytpu.runtime import relay

_MEET_S = 1.0
_FURTHEST = 1000
_EARSHOT_S = 1800.0
_LOOK_S = 0.02


class Board(Protocol):
    """Where ranks leave word for one another, rank 0 most of all."""

    def say(self, topic: str, word: dict[str, Any]) -> None: ...
    def hear(self, topic: str, within_s: float) -> dict[str, Any]:
        """:raises LostError: there was no word of rank 0 in time."""
        ...

    def heard(self, topic: str) -> dict[str, Any] | None:
        """What was said of it so far."""
        ...

    def drop(self, topic: str) -> None: ...


class Relayed:
    """The board of one try, in Ray's key-value store.

    :param token: differs between tries, so that none hears an earlier one's words.
    """

    def __init__(self, request: str, token: str) -> None:
        self._request, self._token = request, token

    def say(self, topic: str, word: dict[str, Any]) -> None:
        relay.publish(self._request, f"{self._token}/{topic}", word)

    def hear(self, topic: str, within_s: float) -> dict[str, Any]:
        until = time.monotonic() + within_s
        while (word := self.heard(topic)) is None:
            if time.monotonic() > until:
                raise LostError(
                    f"Rank 0 has said nothing of {topic} for {within_s:.0f} s.", "Look at the log of the first host."
                )
            time.sleep(_LOOK_S)
        return word

    def heard(self, topic: str) -> dict[str, Any] | None:
        return relay.collect(self._request, f"{self._token}/{topic}")

    def drop(self, topic: str) -> None:
        relay.drop(self._request, f"{self._token}/{topic}")


@dataclass(frozen=True, slots=True)
class Turn:
    """What a step asks for.

    :param leave: why the loop has to end here, empty where it goes on.
    :param part: why it may end here once it is saved; it only goes on where it was not.
    """

    save: bool = False
    leave: str = ""
    part: str = ""


class Agreement:
    """One rank's part in deciding. Every rank calls :meth:`at` with the same steps.

    :param board: ``None`` where there is one rank.
    :param noticed: why hosts of the gang will be taken away, empty where nobody says so; asked on rank 0 alone.
    :param ticks: a clock in seconds that never goes back.
    :param wished: why the loop is to end after its next save, empty where it is not; asked on rank 0 alone.
    """

    def __init__(
        self,
        policy: CheckpointPolicy,
        rank: int,
        board: Board | None,
        noticed: Callable[[], str],
        ticks: Callable[[], float] = time.monotonic,
        wished: Callable[[], str] = str,
    ) -> None:
        self._policy, self._rank, self._board = policy, rank, board
        self._noticed, self._ticks, self._wished = noticed, ticks, wished
        self._part = ""
        self._posted: list[str] = []
        self._spent: list[str] = []
        self.begin(0)

    def begin(self, step: int) -> None:
        """The loop goes on from *step*, which is saved."""
        self.asked = step
        self._asked_at = ticks = self._ticks()
        self._meeting, self._stride = step + 1, 1
        self._met, self._met_at = step, ticks

    def at(self, step: int) -> Turn:
        """What to do now that *step* is done."""
        turn = self._meet(step) if step >= self._meeting else Turn()
        every = self._policy.every_steps
        if turn.save or (every is not None and step - self.asked >= every):
            self.asked, self._asked_at = step, self._ticks()
            self._tidy()
            return Turn(save=True, leave=turn.leave, part=self._part)
        return turn

    def _meet(self, step: int) -> Turn:
        topic = f"step {step}"
        if self._rank and self._board is not None:
            word = self._board.hear(topic, _EARSHOT_S)
        else:
            word = self._decide(step)
            if self._board is not None:
                self._board.say(topic, word)
                self._posted.append(topic)
        self._meeting, self._part = word["next"], word["part"]
        return Turn(word["save"], word["leave"])

    def _decide(self, step: int) -> dict[str, Any]:
        now, leave, seconds = self._ticks(), self._noticed(), self._policy.every_seconds
        pace = (now - self._met_at) / max(step - self._met, 1)
        due = seconds is not None and now - self._asked_at >= seconds
        left = _MEET_S if seconds is None or due else min(_MEET_S, self._asked_at + seconds - now)
        # At most twice as far as the last time: the first steps are only handed to the devices, not yet done.
        furthest = min(2 * self._stride, _FURTHEST)
        self._stride = max(1, min(furthest, int(left / pace) if pace > 0 else furthest))
        self._met, self._met_at = step, now
        return {"save": due or bool(leave), "leave": leave, "part": self._wished(), "next": step + self._stride}

    def _tidy(self) -> None:
        """Whoever begins a save has seen all that was said before the save before: that needed every rank."""
        for topic in self._spent:
            if self._board is not None:
                self._board.drop(topic)
        self._spent, self._posted = self._posted, []


def draining(nodes: frozenset[str]) -> str:
    """Why hosts among *nodes* will be taken away, by what Ray was told; empty where it was told nothing.

    Not ``ray.train.get_preemption_info``, which is a barrier of all workers in each step (Ray 2.60).
    """
    from ray._private.state import state

    found = {node: until for node, until in state.get_draining_nodes().items() if node in nodes}
    if not found:
        return ""
    node, until = min(found.items(), key=lambda each: each[1] or float("inf"))
    left = f" in {max(0.0, until / 1000 - time.time()):.0f} s" if until else ""
    return f"Ray drains node {node[:8]}{left}"
