"""Where the seconds of a training run go: into steps that count, or into what. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from airflow_raytpu.model import reading

_HELD = ("useful", "init", "compile", "saving", "redone", "idle")
"""The parts of the time for which slices were held. They add up to it."""

_NEEDED = ("useful", "init", "compile", "redone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the loop of one try has told of its time, up to its last word. Seconds; what is not known yet is 0.

    :param began: the step that it went on from.
    :param first: the number of its first step.
    :param reached: the last step that it told.
    :param begun_at: when it had its state, since the epoch.
    :param first_s: from then to the end of the first step.
    :param since_s: from there to its last word.
    :param blocked_s: of these, for which it stood still for saves.
    """

    began: int = 0
    first: int = 0
    reached: int = 0
    begun_at: float = 0.0
    first_s: float = 0.0
    since_s: float = 0.0
    blocked_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Seconds by what they went into, over all tries.

    A second on fewer slices than the run may have counts as that share of one, so that all are of the same chips.

    :param useful_s: steps, but those that were done again.
    :param init_s: from a slice to a loop that has its state: workers, mesh, restore.
    :param compile_s: the first step of each try, less what a step takes usually.
    :param saving_s: the loop stood still for saves.
    :param redone_s: steps that were lost and done again.
    :param idle_s: a slice was held and nothing is known to have been done: a loss until it was seen, the end, and a
        slice that waited for the gang to take it.
    :param waiting_s: no slice was held. It has no share.
    :param began: the step that the last try went on from.
    :param reached: the last step that it told.
    :param open_s: of ``useful_s``, what that try put in: it may have to be done again.
    """

    useful_s: float = 0.0
    init_s: float = 0.0
    compile_s: float = 0.0
    saving_s: float = 0.0
    redone_s: float = 0.0
    idle_s: float = 0.0
    waiting_s: float = 0.0
    began: int = 0
    reached: int = 0
    open_s: float = 0.0

    @property
    def held_s(self) -> float:
        """Seconds for which slices were held."""
        return sum(self._held().values())

    @property
    def share(self) -> float:
        """The useful part of the time for which slices were held."""
        return self._of(_HELD)

    @property
    def ceiling(self) -> float:
        """The share that the same losses leave at best: nothing is paid but init, compilation and the lost steps."""
        return self._of(_NEEDED)

    def waited(self, seconds: float) -> Goodput:
        """And *seconds* without a slice."""
        return replace(self, waiting_s=self.waiting_s + max(0.0, seconds))

    def idled(self, seconds: float) -> Goodput:
        """And *seconds* on slices, of which nothing is known. The share is in them already."""
        return replace(self, idle_s=self.idle_s + max(0.0, seconds))

    def held(self, pace: Pace, since: float, now: float, weight: float = 1.0) -> Goodput:
        """And a try that held its slices from *since* to *now*. Whatever clocks say, the parts add up to that.

        :param weight: its slices, as a share of the most that the run may have.
        """
        left = max(0.0, now - since)

        def take(seconds: float) -> float:
            nonlocal left
            taken = min(max(0.0, seconds), left)
            left -= taken
            return taken

        init = take(pace.begun_at - since) if pace.begun_at else take(left)
        first = take(pace.first_s) if pace.reached > pace.began else take(left)
        after = take(pace.since_s)
        saving = min(max(0.0, pace.blocked_s), after)
        steps = pace.reached - pace.first
        usual = min((after - saving) / steps, first) if steps > 0 else 0.0
        useful = after - saving + usual
        return replace(
            self,
            useful_s=self.useful_s + weight * useful,
            init_s=self.init_s + weight * init,
            compile_s=self.compile_s + weight * (first - usual),
            saving_s=self.saving_s + weight * saving,
            idle_s=self.idle_s + weight * left,
            began=pace.began,
            reached=max(pace.began, pace.reached),
            open_s=weight * useful,
        )

    def going_on(self, step: int) -> Goodput:
        """The next try goes on from *step*: what the last one did beyond that is done again."""
        done = self.reached - self.began
        kept = min(max(step - self.began, 0), done)
        again = self.open_s * (1 - kept / done) if done > 0 else 0.0
        return replace(
            self,
            useful_s=self.useful_s - again,
            redone_s=self.redone_s + again,
            began=step,
            reached=step,
            open_s=0.0,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Goodput:
        """:raises RequestError: it is nothing of the kind."""
        return reading.newer("goodput", cls, data)

    def to_result(self) -> dict[str, float]:
        """For the task's result: the share, what could be reached, and the seconds."""
        seconds = {each.name: round(getattr(self, each.name), 1) for each in fields(self)[: len(_HELD) + 1]}
        return {"useful": round(self.share, 4), "ceiling": round(self.ceiling, 4), **seconds}

    def describe(self) -> str:
        """``91 % useful (compile 4 %, redone 3 %, saving 2 %)``; what is less than half a percent is left out."""
        whole = self.held_s or 1.0
        shares = {name: 100 * seconds / whole for name, seconds in self._held().items()}
        rest = [f"{name} {share:.0f} %" for name, share in shares.items() if name != "useful" and share >= 0.5]
        return f"{shares['useful']:.0f} % useful" + (f" ({', '.join(rest)})" if rest else "")

    def _held(self) -> dict[str, float]:
        return {name: getattr(self, f"{name}_s") for name in _HELD}

    def _of(self, names: tuple[str, ...]) -> float:
        held = self._held()
        whole = sum(held[name] for name in names)
        return held["useful"] / whole if whole > 0 else 0.0
