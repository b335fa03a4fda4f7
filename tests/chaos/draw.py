"""What each round will be, from the seed alone: an operator, how it waits, a fault, and when it comes. Pure."""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TOGETHER = 7
"""Rounds that meet one fault together."""

_APART = 16
"""Rounds in a row that each have a fault of their own."""

ONE_HOST, TWO_HOSTS = "v6e:2x2", "v6e:2x4@ct6e-standard-4t"
STEPS = 36
_ROWS_A_STEP = 16


class Fault(enum.Enum):
    NONE = "none"
    WORKER_KILL = "worker killed"
    WORKER_HANG = "worker hangs"
    TRIGGERER_KILL = "triggerer killed"
    TRIGGERER_TERM = "triggerer ended"
    TRIGGERER_HANG = "triggerer hangs"
    SCHEDULER_KILL = "scheduler killed"
    API_KILL = "API server killed"
    HOST_KILL = "host killed"
    SLICE_KILL = "slice killed"
    DRIVER_KILL = "driver killed"
    OWN_HEAD_KILL = "own head killed"
    SHARED_HEAD_KILL = "shared head killed"
    STATE_WIPE = "task state wiped"
    MARK_FAILED = "marked failed"
    MARK_SUCCESS = "marked success"
    CLEAR = "cleared"
    DELETE_RUN = "run deleted"

    @property
    def by_user(self) -> bool:
        """Whether somebody asks for the work to end."""
        return self in _BY_USER

    @property
    def on_ray(self) -> bool:
        """Whether it takes the program itself, so that this must begin again."""
        return self in _ON_RAY

    @property
    def for_all(self) -> bool:
        """Whether it meets every round that is at work."""
        return self in _FOR_ALL

    @property
    def on_watcher(self) -> bool:
        """Whether it takes whoever watches the work, and writes the task's log."""
        return self in _ON_WATCHER

    @property
    def counted_by_airflow(self) -> bool:
        """Whether Airflow itself calls the task failed, and not this provider."""
        return self in _COUNTED


_BY_USER = {Fault.MARK_FAILED, Fault.MARK_SUCCESS, Fault.CLEAR, Fault.DELETE_RUN}
_ON_RAY = {Fault.HOST_KILL, Fault.SLICE_KILL, Fault.DRIVER_KILL, Fault.OWN_HEAD_KILL, Fault.SHARED_HEAD_KILL}
_COUNTED = {Fault.WORKER_KILL, Fault.WORKER_HANG, Fault.SCHEDULER_KILL, Fault.API_KILL}
_TRIGGERER = {Fault.TRIGGERER_KILL, Fault.TRIGGERER_TERM, Fault.TRIGGERER_HANG}
_ON_WATCHER = {*_TRIGGERER, *_COUNTED}
_FOR_ALL = {*_TRIGGERER, Fault.SCHEDULER_KILL, Fault.API_KILL, Fault.SHARED_HEAD_KILL}


class When(enum.Enum):
    """What is waited for before the fault; see :mod:`tests.chaos.moments`."""

    SCHEDULED = "scheduled"
    CREATING = "creating"
    SUBMITTED = "submitted"
    DEFERRED = "deferred"
    ON_WORKER = "on a worker"
    STEP = "step"
    SAVING = "saving"
    FINISHING = "finishing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """:param delay_s: seconds from the moment to the fault."""

    when: When
    step: int = 0
    delay_s: float = 0.0

    def __str__(self) -> str:
        where = f"{self.when.value} {self.step}" if self.when is When.STEP else self.when.value
        return f"{where} +{self.delay_s:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round.

    :param kind: ``job``, ``hosts`` (a job once a host), ``train``, ``infer``, ``serve`` or ``cluster``.
    :param own: on a cluster of its own.
    :param leads: the fault of a batch comes at the moment of its first round.
    """

    number: int
    batch: int
    kind: str
    own: bool
    deferrable: bool
    slice: str
    steps: int
    fault: Fault
    moment: Moment
    leads: bool

    @property
    def token(self) -> str:
        return f"r{self.number:03d}"

    @property
    def dag_id(self) -> str:
        return f"{self.kind}_{'own' if self.own else 'shared'}_{'triggerer' if self.deferrable else 'worker'}"

    @property
    def operator(self) -> str:
        return f"{self.kind}{' (own cluster)' if self.own and self.kind != 'cluster' else ''}"

    @property
    def rows(self) -> int:
        return self.steps * _ROWS_A_STEP


class Bag:
    """Draws each of *items* equally often, in a random order."""

    def __init__(self, rng: random.Random, items: Sequence[Fault]) -> None:
        self._rng, self._items, self._left = rng, list(items), list[Fault]()

    def draw(self) -> Fault:
        if not self._left:
            self._left = self._rng.sample(self._items, len(self._items))
        return self._left.pop()


def rounds(seed: int, count: int) -> list[Round]:
    """The first *count* rounds of *seed*; a longer row begins with the same."""
    drawn = _endless(random.Random(seed))
    return [next(drawn) for _ in range(count)]


def _endless(rng: random.Random) -> Iterator[Round]:
    for_one = Bag(rng, [each for each in Fault if not each.for_all])
    for_all = Bag(rng, [each for each in Fault if each.for_all])
    numbers = itertools.count(1)
    for batch in itertools.count(1):
        # One batch with a fault for each of its rounds, then two with one fault that meets them all.
        common = None if batch % 3 == 1 else for_all.draw()
        size = TOGETHER if common else _APART
        serving = rng.sample(range(size), size // TOGETHER)
        owning = rng.sample(range(size), size * 2 // TOGETHER)
        for place in range(size):
            fault = common or for_one.draw()
            serves, own = place in serving, place in owning
            yield _round(rng, next(numbers), batch, fault, serves=serves, own=own, leads=place == 0)


def _round(rng: random.Random, number: int, batch: int, fault: Fault, *, serves: bool, own: bool, leads: bool) -> Round:
    if fault is Fault.OWN_HEAD_KILL:
        kind, own = rng.choice(["job", "train", "infer", "cluster"]), True
    elif fault is Fault.SHARED_HEAD_KILL:
        kind, own = rng.choice(["job", "hosts", "train", "infer"]), False
    elif serves and fault not in {Fault.HOST_KILL, Fault.SLICE_KILL}:
        kind, own = "serve", False
    else:
        kind = rng.choice(
            ["job", "train", "train", "infer", "cluster"] if own else ["job", "hosts", "train", "train", "infer"]
        )
    many = kind != "serve" and not own and rng.random() < (1.0 if fault is Fault.HOST_KILL else 0.25)
    deferrable = fault in _TRIGGERER or rng.random() < (
        0.25 if fault in {Fault.WORKER_KILL, Fault.WORKER_HANG} else 0.6
    )
    steps = rng.randrange(STEPS - 8, STEPS + 8) if kind != "serve" else 10
    return Round(
        number=number,
        batch=batch,
        kind=kind,
        own=own,
        deferrable=deferrable,
        slice=TWO_HOSTS if many else ONE_HOST,
        steps=steps,
        fault=fault,
        moment=_moment(rng, fault, kind, own=own, deferrable=deferrable, steps=steps),
        leads=leads,
    )


def _moment(rng: random.Random, fault: Fault, kind: str, *, own: bool, deferrable: bool, steps: int) -> Moment:
    step = rng.randrange(1, steps - 2)
    delay_s = round(rng.uniform(0, 2), 1)
    when = [When.STEP, When.STEP, When.STEP, When.FINISHING]
    if kind == "train":
        when += [When.SAVING, When.SAVING]
    if fault not in {Fault.HOST_KILL, Fault.SLICE_KILL}:
        when += [When.SUBMITTED, *([When.CREATING] if own and fault is not Fault.DRIVER_KILL else [])]
    if not fault.on_ray:
        when += [When.SCHEDULED, *([When.DEFERRED] * 2 if deferrable else [When.ON_WORKER])]
    if fault in {Fault.WORKER_KILL, Fault.WORKER_HANG} and deferrable:
        # It is on a worker only for moments, at its beginning and at its end.
        when, delay_s = [When.ON_WORKER, When.FINISHING], round(rng.uniform(0, 0.5), 1)
    chosen = rng.choice(when)
    if chosen is When.FINISHING and fault.on_ray:
        delay_s = 0.0  # a moment later the program would have ended
    return Moment(when=chosen, step=step, delay_s=delay_s)
