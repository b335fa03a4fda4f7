"""What a round lost, judged from the facts alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow.parquet as pq

from tests.chaos import diaries
from tests.chaos.dags.chaos_work import CHECKPOINT_EVERY
from tests.chaos.diaries import Start
from tests.chaos.draw import Fault
from tests.chaos.play import STOP_WITHIN_S, Facts
from tests.chaos.stage import HEARTBEAT_TIMEOUT_S, Stage

SILENCE_S = 75.0
"""60 s, and what a busy machine adds."""

_UNWATCHED_S = HEARTBEAT_TIMEOUT_S + 45.0
"""How long nobody may be there to speak, once the watcher itself was killed."""


@dataclass
class Losses:
    """Each list holds a line for people for each loss; *beyond* and the numbers are no losses."""

    orphans: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    kills: list[str] = field(default_factory=list)
    silences: list[str] = field(default_factory=list)
    retries: list[str] = field(default_factory=list)
    beyond: int = 0
    redone: int = 0
    recovery_s: float = 0.0

    def all(self) -> list[str]:
        return [
            f"{name}: {what}"
            for name in ("orphans", "duplicates", "verdicts", "steps", "rows", "kills", "silences", "retries")
            for what in getattr(self, name)
        ]


def judge(stage: Stage, facts: Facts) -> Losses:
    """Every loss of a round that was played to its end."""
    losses = Losses(orphans=list(facts.left))
    losses.duplicates = [*diaries.overlaps([start for start in facts.starts if start.steps]), *_jobs_at_once(facts)]
    if facts.plan.kind == "serve":
        # Replicas of one version may well be side by side.
        losses.duplicates = list(_jobs_at_once(facts))
    finished = _finished(stage, facts)
    losses.verdicts = list(_verdicts(facts, finished))
    losses.steps, losses.redone = _steps(facts)
    losses.rows = list(_rows(stage, facts))
    losses.kills = list(_kills(stage, facts, finished))
    losses.silences = list(_silences(facts))
    losses.retries, losses.beyond = _retries(facts)
    losses.recovery_s = _recovery(facts)
    return losses


def _jobs_at_once(facts: Facts) -> Iterator[str]:
    rows = sorted(facts.jobs.items(), key=lambda row: row[1]["start_time"])
    for number, (name, job) in enumerate(rows):
        for other, later in rows[number + 1 :]:
            if (job["end_time"] or float("inf")) > later["start_time"] + 1000:
                yield f"Ray had jobs {name} and {other} at the same time"


def _finished(stage: Stage, facts: Facts) -> bool:
    """Whether the program did all its work, by what it left."""
    plan = facts.plan
    if plan.kind == "serve":
        return facts.answered == plan.token
    if plan.kind == "infer":
        return sorted(_ids(stage, facts)) == list(range(plan.rows))
    asked_again = facts.struck.at if facts.struck and plan.fault is Fault.CLEAR else 0.0
    return any(start.done and start.lines[-1]["at"] > asked_again for start in facts.starts)


def _verdicts(facts: Facts, finished: bool) -> Iterator[str]:
    plan, state = facts.plan, facts.task.state if facts.task else None
    if facts.trouble:
        yield f"the round could not be played: {facts.trouble}"
    if not facts.over:
        yield f"it is not over: Airflow has it as {state}"
        return
    if facts.struck and plan.fault in _USERS_WORD:
        due = _USERS_WORD[plan.fault]
        if facts.struck.what == "cluster" and due == "failed":
            # It was said of the task before.
            due = "upstream_failed"
        if state != due:
            yield f"a user had it {plan.fault.value}, and Airflow has it as {state}"
        finished = False
    elif (state == "success") != finished:
        yield f"Airflow has it as {state}, and the program {'had' if finished else 'had not'} finished"
    if plan.kind == "serve" and not (finished or _is_as_before(facts)):
        yield f"the application answers {facts.answered or 'nothing'}, and the last good version is {facts.before}"


def _is_as_before(facts: Facts) -> bool:
    """Whether the version before answers again, where its cluster is the same still."""
    return facts.plan.fault is Fault.SHARED_HEAD_KILL or facts.answered == facts.before or _was_up(facts)


def _was_up(facts: Facts) -> bool:
    """Whether the new version was up before its rollout had to be ended, or the rollout was over by then."""
    at = facts.struck.at if facts.struck else 0.0
    up = any(start.done and start.last_at < at + 3 for start in facts.starts)
    over = any(
        job["status"] == "SUCCEEDED" and (job.get("end_time") or 0) / 1000 < at + STOP_WITHIN_S
        for job in facts.jobs.values()
    )
    return facts.answered == facts.plan.token and (up or over)


_USERS_WORD = {Fault.MARK_FAILED: "failed", Fault.MARK_SUCCESS: "success", Fault.DELETE_RUN: None}


def _steps(facts: Facts) -> tuple[list[str], int]:
    """Restarts that went back by more than one interval, and the most steps that were redone."""
    lost, most = [], 0
    starts = [start for start in facts.starts if start.steps] if facts.plan.kind == "train" else []
    for one, other in itertools.pairwise(starts):
        if one.done:
            continue  # it was asked for anew
        resumed = other.steps[0][0] - 1
        redone = one.step - resumed
        most = max(most, redone)
        due = one.step // CHECKPOINT_EVERY * CHECKPOINT_EVERY
        # The save of the newest step that was due may have been under way; then the one before it is the newest.
        under_way = facts.commits.get(due, float("inf")) > one.last_at
        if redone > CHECKPOINT_EVERY + 1 and not (under_way and resumed >= due - CHECKPOINT_EVERY):
            lost.append(f"went on from step {resumed}, after step {one.step}")
    return lost, most


def _ids(stage: Stage, facts: Facts) -> list[int]:
    found: list[int] = []
    for path in (stage.diary(facts.plan.token) / "out").glob("**/*.parquet"):
        table = pq.ParquetFile(path).read()
        ids, doubled = table["id"].to_pylist(), table["double"].to_pylist()
        found += [row if twice == 2.0 * row else -1 for row, twice in zip(ids, doubled, strict=True)]
    return found


def _rows(stage: Stage, facts: Facts) -> Iterator[str]:
    if facts.plan.kind != "infer":
        return
    ids = _ids(stage, facts)
    if len(set(ids)) != len(ids) or -1 in ids:
        yield f"{len(ids)} rows out, {len(set(ids))} different ones, {ids.count(-1)} wrong"
    if facts.task and facts.task.state == "success" and not facts.struck_by_user and len(ids) != facts.plan.rows:
        yield f"{facts.plan.rows} rows in, {len(ids)} out"


def _kills(stage: Stage, facts: Facts, finished: bool) -> Iterator[str]:
    """What ended before it was done though nobody asked, and what somebody asked to end and did not in time."""
    plan, struck = facts.plan, facts.struck
    by_user = facts.struck_by_user
    if struck and by_user and plan.kind != "serve":
        for start in facts.starts:
            gone = facts.died.get(start.began, float("inf"))
            if start.began < struck.at and gone - struck.at > STOP_WITHIN_S:
                yield f"pid {start.pid} ran on for over {STOP_WITHIN_S:.0f} s after a user had it {plan.fault.value}"
    for name, job in facts.jobs.items() if not by_user else ():
        # One that has said how it ended is only on its way out, and may be hurried.
        if job["status"] == "STOPPED" and not (stage.outbox(plan.dag_id, plan.token) / f"{name}.result.json").exists():
            yield f"Ray's job {name} was stopped"
    for start in facts.starts if plan.kind != "serve" else ():
        if not (start.done or _explained(facts, start, finished)):
            yield f"pid {start.pid} ended at step {start.step} of {plan.steps}, and nobody had asked for that"


def _explained(facts: Facts, start: Start, finished: bool) -> bool:
    plan, struck = facts.plan, facts.struck
    if plan.kind == "infer" and start is facts.starts[-1] and finished:
        return True
    if struck is None:
        return False
    if plan.fault is Fault.CLEAR:
        return start is not facts.starts[-1]
    return facts.struck_by_user or (plan.fault.on_ray and start.began < struck.until + 1)


def _silences(facts: Facts) -> Iterator[str]:
    moments = [at for at, _, _ in facts.log if at <= facts.ended]
    for one, other in itertools.pairwise([*moments, facts.ended]):
        struck = facts.struck if facts.plan.fault.on_watcher else None
        unwatched = struck is not None and one <= struck.until and other >= struck.at
        if other - one > (_UNWATCHED_S if unwatched else SILENCE_S):
            yield f"nothing was said for {other - one:.0f} s"


def _retries(facts: Facts) -> tuple[list[str], int]:
    """Tries that were used up for no fault of the program, and how many of them the provider could not have saved.

    Those are tries that Airflow itself calls failed, as it lost its own worker, and those of a task that knows a shared
    cluster by its name alone: only who brought that up can bring it back.
    """
    if facts.task is None or facts.struck_by_user:
        return [], 0
    used = max(0, facts.task.tries - 1) + (facts.task.state == "failed")
    ours = [text for _, level, text in facts.log if level in {"error", "critical"} and "[RT" in text]
    fault = facts.plan.fault if facts.struck else Fault.NONE
    if (fault.counted_by_airflow and not ours) or fault is Fault.SHARED_HEAD_KILL:
        return [], used
    why = ours[-1] if ours else "no error of the provider's"
    return [f"{used} tries used: {why}"] * bool(used), 0


def _recovery(facts: Facts) -> float:
    """Seconds from the fault until all was as it should be again."""
    struck = facts.struck
    if struck is None or facts.plan.fault is Fault.NONE:
        return 0.0
    if facts.struck_by_user:
        gone = [facts.died.get(start.began, facts.ended) for start in facts.starts if start.began < struck.at]
        return max([0.0, *(at - struck.at for at in gone)])
    if facts.plan.fault.on_ray:
        again = [start.steps[0][1] for start in facts.starts if start.began > struck.at and start.steps]
        return min(again, default=facts.ended) - struck.at
    done = max((start.last_at for start in facts.starts), default=struck.until)
    return max(0.0, facts.ended - max(done, struck.until))
