"""One batch: its rounds side by side, each followed from outside from its beginning until nothing of it moves."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_raytpu.model.errors import BackendUnreachable, PlaceError
from tests.airflow_faults import mark_run
from tests.chaos import diaries, outside, strike
from tests.chaos.draw import Fault, Round, When
from tests.chaos.moments import own_clusters, reached
from tests.chaos.outside import Task, ask
from tests.chaos.stage import Stage, path_of
from tests.chaos.strike import Missed, Strike
from tests.real_airflow import Run

SIDE_BY_SIDE = 8
NAP_S, SERVE_NAP_S = 0.35, 8.0
STOP_WITHIN_S = 60.0

_LOOK_S = 0.25
_MOMENT_WITHIN_S = 240.0
_OVER_WITHIN_S = 300.0
_GONE_WITHIN_S = 75.0


@dataclass
class Facts:
    """What was seen of a round.

    :param died: when each start was first seen dead, by the moment it began.
    :param commits: when each checkpoint was first seen committed, by step.
    :param left: what still ran when all should have been gone.
    :param jobs: Ray's own rows of the round's jobs on the shared cluster.
    :param answered: the version that the application answered last.
    """

    plan: Round
    began: float = 0.0
    struck: Strike | None = None
    missed: str = ""
    ended: float = 0.0
    over: bool = False
    task: Task | None = None
    starts: Sequence[diaries.Start] = ()
    died: dict[float, float] = field(default_factory=dict)
    commits: dict[int, float] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[tuple[float, str, str]] = field(default_factory=list)
    before: str = ""
    answered: str = ""
    trouble: str = ""

    @property
    def struck_by_user(self) -> bool:
        return self.struck is not None and self.plan.fault.by_user


class Common:
    """The fault that meets all rounds of a batch: the first round brings it about, the others wait for it."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._struck: Strike | None = None

    def tell(self, struck: Strike | None) -> None:
        self._struck = struck
        self._done.set()

    def wait(self) -> Strike | None:
        self._done.wait(_MOMENT_WITHIN_S + _OVER_WITHIN_S)
        return self._struck


def play(stage: Stage, plans: Sequence[Round]) -> Iterator[Facts]:
    """Play *plans*, :data:`SIDE_BY_SIDE` of them at a time; the facts of each as it is over."""
    common, places, serving = Common(), threading.Semaphore(SIDE_BY_SIDE), threading.Lock()
    played: queue.Queue[Facts] = queue.Queue()

    def follow(plan: Round) -> None:
        # There is one application, whose versions come one after another.
        with serving if plan.kind == "serve" else contextlib.nullcontext(), places:
            played.put(_Played(stage, plan, common, alone=len(plans) == 1).follow())

    for plan in plans:
        # As daemons, so that whoever ends this process does not wait for their end.
        threading.Thread(target=follow, args=(plan,), daemon=True).start()
    for _ in plans[1:]:
        yield played.get()
    last = played.get()
    stage.settle()
    # Who holds a group or an actor is not said in Ray's table, so that is looked at once all are over.
    last.left += _held(stage)
    yield last


class _Played:
    def __init__(self, stage: Stage, plan: Round, common: Common, *, alone: bool) -> None:
        self._stage, self.plan, self._common = stage, plan, common
        self._leads = plan.leads or alone
        self.facts = Facts(plan)
        self._task_id = "cluster" if plan.kind == "cluster" and plan.moment.when is When.CREATING else "work"

    def follow(self) -> Facts:
        facts, plan = self.facts, self.plan
        nap_s = SERVE_NAP_S if plan.kind == "serve" else NAP_S
        try:
            facts.began, facts.before = time.time(), self._stage.version
            run = self._stage.begin(plan.dag_id, plan.token, plan.slice, plan.steps, nap_s)
            self._meet(run)
            self._until_over(run)
            self._until_gone()
            self._ask_ray()
        except Exception as error:  # noqa: BLE001 - a round that cannot be played is told as such, and others go on
            facts.trouble, facts.ended = f"{type(error).__name__}: {error}", time.time()
            if self._leads:
                self._common.tell(None)
        return facts

    def _meet(self, run: Run) -> None:
        """Wait for the fault's moment, and have it."""
        facts, plan = self.facts, self.plan
        try:
            if plan.fault.for_all and not self._leads:
                facts.struck = self._shared_fate()
            else:
                self._await_moment(run)
                time.sleep(plan.moment.delay_s)
                facts.struck = strike.strike(self._stage, plan, run, self._task_id)
        except Missed as missed:
            facts.missed = str(missed)
        if self._leads:
            self._common.tell(facts.struck)

    def _shared_fate(self) -> Strike:
        """The fault of the whole batch, if this round was at work then."""
        struck = self._common.wait()
        if struck is None:
            raise Missed("it did not come")
        now = self._look()
        if now is None or (now.over and now.ended < struck.at):
            raise Missed("the task had ended")
        return struck

    def _await_moment(self, run: Run) -> None:
        deadline = time.time() + _MOMENT_WITHIN_S
        while not reached(self._stage, self.plan, now := self._look()):
            if now is not None and now.over:
                raise Missed("the task had ended")
            if time.time() > deadline:
                raise Missed(f"{self.plan.moment} did not come within {_MOMENT_WITHIN_S:.0f} s of {run.run_id}")
            time.sleep(_LOOK_S)

    def _until_over(self, run: Run) -> None:
        facts, plan = self.facts, self.plan
        limit = time.time() + _OVER_WITHIN_S
        while not facts.over and time.time() < limit:
            self._look()
            state = self._stage.tables.run_state(plan.dag_id, plan.token)
            facts.over = state in {None, "success", "failed"}
            time.sleep(_LOOK_S)
        facts.task = self._stage.tables.task(plan.dag_id, plan.token, "work")
        facts.ended = facts.task.ended if facts.task and facts.task.ended else time.time()
        if not facts.over:
            with contextlib.suppress(BackendUnreachable, PlaceError):
                mark_run(run, "failed")

    def _until_gone(self) -> None:
        """Wait until nothing of the round is left, and say what is after the time that it may take."""
        facts, limit = self.facts, time.time() + _GONE_WITHIN_S
        while (left := self._left()) and time.time() < limit:
            time.sleep(_LOOK_S)
        facts.left = left
        facts.log = self._stage.tables.log(self.plan.dag_id, self.plan.token, "work")
        facts.starts = diaries.read(self._stage.diary(self.plan.token))
        if self.plan.kind == "serve":
            self._ask()

    def _left(self) -> list[str]:
        self._look()
        plan = self.plan
        serving = plan.kind == "serve"
        alive = [] if serving else [start for start in self.facts.starts if start.alive()]
        names = self._stage.names(plan.dag_id, plan.token)
        return [
            *(f"process {start.pid} of the program" for start in alive),
            *(f"driver of {name}" for name in names if outside.driver(name)),
            *(f"cluster {name}" for name in own_clusters(self._stage, plan)),
        ]

    def _ask(self) -> None:
        """The application's version, once it is the one that it should be, or after some time."""
        facts, limit = self.facts, time.time() + 45
        succeeded = facts.task is not None and facts.task.state == "success"
        due = facts.plan.token if succeeded and facts.plan.fault is not Fault.MARK_SUCCESS else facts.before
        while time.time() < limit:
            facts.answered = str((ask(self._stage.shared.endpoint) or {}).get("version", ""))
            if facts.answered == due:
                break
            time.sleep(1)
        self._stage.version = facts.answered

    def _ask_ray(self) -> None:
        """Ray's own rows of the round's jobs, where their cluster is there still."""
        if not self.plan.own and self.plan.fault is not Fault.SHARED_HEAD_KILL:
            table = self._stage.shared.tables.jobs()
            names = self._stage.names(self.plan.dag_id, self.plan.token)
            self.facts.jobs = {name: table[name] for name in names if name in table}

    def _look(self) -> Task | None:
        """Take note of what is seen only while it is there."""
        facts, plan, now = self.facts, self.plan, time.time()
        facts.starts = diaries.read(self._stage.diary(plan.token))
        for start in facts.starts:
            if start.began not in facts.died and not start.alive():
                facts.died[start.began] = now
        if plan.kind == "train":
            folder = (
                path_of(self._stage.airflow.home.storage.as_uri()) / plan.dag_id / "work" / plan.token / "checkpoints"
            )
            for record in folder.glob("*/raytpu-commit.json"):
                facts.commits.setdefault(int(record.parent.name), now)
        return self._stage.tables.task(plan.dag_id, plan.token, self._task_id)


def _held(stage: Stage) -> list[str]:
    """What the shared cluster still holds after the time that it may take to let go."""
    limit = time.time() + _GONE_WITHIN_S
    tables = stage.shared.tables
    while True:
        left = [
            *(f"job {name}" for name, job in tables.jobs().items() if job["status"] in {"RUNNING", "PENDING"}),
            *(f"placement group {group}" for group in tables.groups()),
            *(f"actor {name}" for name in tables.actors()),
        ]
        if not left or time.time() > limit:
            return left
        time.sleep(1)
