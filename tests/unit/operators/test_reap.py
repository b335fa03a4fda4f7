"""The maintenance task: it asks Airflow before it believes that nobody looks after a thing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_raytpu.model.errors import ClusterError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.operators import RayTpuReapOperator
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, orphan

ME = TaskInstance(dag_id="reap_orphans", task_id="reap", run_id="scheduled__1")


@pytest.fixture
def airflow_has(monkeypatch):
    """Sets what Airflow's server answers for the run ``run`` of ``digits``; an exception is raised."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    asked = []

    def have(answer):
        def states(**which):
            asked.append(which)
            if isinstance(answer, Exception):
                raise answer
            return {"run": answer} if answer else {}

        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states))
        return asked

    return have


async def fates(backend, place_with, ti=ME, **arguments):
    place_with(backend)
    task = RayTpuReapOperator(task_id="reap", **arguments)
    return {row["name"]: (row["fate"], row["says"]) for row in await task.aexecute(context(ti))}


async def test_what_airflow_no_longer_knows_is_reaped(airflow_has, place_with):
    asked = airflow_has({})
    backend = ScriptedBackend(left=[orphan(name="a")])
    assert await fates(backend, place_with, older_than=timedelta(hours=2)) == {"a": ("reaped", "")}
    assert asked == [{"dag_id": "digits", "run_ids": ["run"]}]
    assert backend.calls == [("orphans", "airflow 7200"), ("reap", "a")]
    assert backend.closed == 1


@pytest.mark.parametrize(
    "state",
    ["scheduled", "queued", "running", "restarting", "deferred", "up_for_retry", "up_for_reschedule"],
)
async def test_a_task_at_work_keeps_what_it_asked_for_however_silent(airflow_has, place_with, state):
    airflow_has({"train": state})
    backend = ScriptedBackend(left=[orphan(name="a")])
    assert await fates(backend, place_with) == {"a": ("spared", f"Airflow has it at work: train is {state}")}
    assert backend.verbs("reap") == []


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed", "removed", None])
async def test_a_task_that_is_over_keeps_nothing(airflow_has, place_with, state):
    airflow_has({"train": state, "other": "running"})
    assert await fates(ScriptedBackend(left=[orphan(name="a")]), place_with) == {"a": ("reaped", "")}


async def test_a_state_may_come_as_airflows_own_word(airflow_has, place_with):
    from airflow.sdk import TaskInstanceState

    airflow_has({"train": TaskInstanceState.DEFERRED})
    found = await fates(ScriptedBackend(left=[orphan(name="a")]), place_with)
    assert found == {"a": ("spared", "Airflow has it at work: train is deferred")}


async def test_a_mapped_task_is_asked_for_by_its_index(airflow_has, place_with):
    owner = Identity(deployment="airflow", dag_id="digits", task_id="train", run_id="run", map_index=2)
    airflow_has({"train_1": "running", "train_2": "failed", "train": "running"})
    assert await fates(ScriptedBackend(left=[orphan(owner=owner)]), place_with) == {"x": ("reaped", "")}
    airflow_has({"train_2": "running"})
    assert (await fates(ScriptedBackend(left=[orphan(owner=owner)]), place_with))["x"][0] == "spared"


@pytest.mark.parametrize("kind", ["RayCluster", "cluster"])
async def test_a_runs_cluster_stays_while_any_task_of_the_run_is_at_work(airflow_has, place_with, kind):
    owner = Identity(deployment="airflow", dag_id="digits", task_id="cluster", run_id="run")
    left = [orphan(kind=kind, owner=owner)]
    airflow_has({"cluster": "success", "train": "deferred", "score": None})
    assert await fates(ScriptedBackend(left=left), place_with) == {
        "x": ("spared", "Airflow has it at work: train is deferred")
    }
    airflow_has({"cluster": "success", "train": "failed"})
    assert await fates(ScriptedBackend(left=left), place_with) == {"x": ("reaped", "")}


async def test_it_does_not_take_itself_for_work_on_the_cluster(airflow_has, place_with):
    owner = Identity(deployment="airflow", dag_id="digits", task_id="cluster", run_id="run")
    airflow_has({"cluster": "success", "reap": "running"})
    ti = TaskInstance(dag_id="digits", task_id="reap", run_id="run")
    assert await fates(ScriptedBackend(left=[orphan(kind="cluster", owner=owner)]), place_with, ti) == {
        "x": ("reaped", "")
    }


async def test_an_airflow_that_does_not_answer_keeps_everything(airflow_has, place_with):
    airflow_has(ConnectionError("503"))
    backend = ScriptedBackend(left=[orphan(name="a"), orphan(name="b")])
    found = await fates(backend, place_with)
    assert {fate for fate, _ in found.values()} == {"spared"}
    assert "Airflow does not say what is at work: ConnectionError('503')" in found["a"][1]
    assert backend.verbs("reap") == []


async def test_everybodys_cluster_has_no_task_to_ask_for(airflow_has, place_with):
    asked = airflow_has(AssertionError("not to be asked"))
    owner = Identity(deployment="airflow", dag_id="", task_id="team", run_id="")
    left = [orphan(kind="RayCluster", owner=owner)]
    assert await fates(ScriptedBackend(left=left), place_with) == {"x": ("reaped", "")}
    assert asked == []


async def test_a_dry_run_only_looks(airflow_has, place_with):
    airflow_has({})
    backend = ScriptedBackend(left=[orphan(name="a")])
    assert await fates(backend, place_with, dry_run=True) == {"a": ("found", "")}
    assert backend.verbs("reap") == []


async def test_one_that_resists_fails_the_task_after_the_others_are_gone(airflow_has, place_with):
    airflow_has({})
    backend = ScriptedBackend(left=[orphan(name="a"), orphan(name="b")], ends=[ClusterError("It stays."), True])
    with pytest.raises(ClusterError, match=r"1 of 2 do not go: resists RayJob a of .*; It stays\."):
        await fates(backend, place_with)
    assert backend.verbs("reap") == ["reap", "reap"]
    assert backend.closed == 1
