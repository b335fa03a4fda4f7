"""When a round has come to the moment of its fault, seen from outside."""

from __future__ import annotations

from tests.chaos import diaries
from tests.chaos.dags.chaos_work import CHECKPOINT_EVERY
from tests.chaos.draw import Moment, Round, When
from tests.chaos.outside import Task
from tests.chaos.stage import Stage


def reached(stage: Stage, plan: Round, task: Task | None) -> bool:
    """Whether the moment is there, or has passed."""
    match plan.moment.when:
        case When.SCHEDULED:
            return task is not None and task.state is not None
        case When.CREATING:
            return bool(own_clusters(stage, plan))
        case When.SUBMITTED:
            return bool(stage.names(plan.dag_id, plan.token))
        case When.DEFERRED:
            return task is not None and task.state == "deferred"
        case When.ON_WORKER:
            return task is not None and task.state == "running"
        case _:
            return _stepped(stage, plan, plan.moment)


def own_clusters(stage: Stage, plan: Round) -> list[str]:
    """Names of the clusters that the round has had made and that are there."""
    named = [*stage.names(plan.dag_id, plan.token), *stage.names(plan.dag_id, plan.token, "cluster")]
    return [name for name in named if plan.own and (stage.clusters / name / "state.json").exists()]


def _stepped(stage: Stage, plan: Round, moment: Moment) -> bool:
    step = max((start.step for start in diaries.read(stage.diary(plan.token))), default=0)
    if moment.when is When.SAVING:
        return step >= CHECKPOINT_EVERY and step % CHECKPOINT_EVERY == 0 and step >= min(moment.step, plan.steps - 6)
    return step >= (plan.steps - 1 if moment.when is When.FINISHING else moment.step)
