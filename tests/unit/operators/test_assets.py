"""The event of an outlet asset says what was made."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_raytpu.model.errors import UserCodeError
from airflow_raytpu.operators import JaxTrainerOperator
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, failed, succeeded

MODEL = Asset("digits-model")
MADE = {"step": 3, "checkpoint": "gs://b/c/3", "metrics": {"loss": 0.2}, "best_step": None, "evictions": 1}


async def events_of(seen: Any, place_with: Any, extra: dict[str, Any] | None = None) -> OutletEventAccessors:
    events = OutletEventAccessors()
    events[MODEL].extra = extra or {}
    place_with(ScriptedBackend([seen]))
    operator = JaxTrainerOperator(task_id="train", train_loop="json:dumps", slice="v6e:4x4", outlets=[MODEL])
    try:
        await operator.aexecute({**context(TaskInstance()), "outlet_events": events})
    except UserCodeError:
        assert seen.outcome.code
    return events


async def test_the_checkpoint_its_step_and_metrics_and_the_slice(place_with) -> None:
    events = await events_of(succeeded(MADE), place_with)
    assert events[MODEL].extra == {
        "slice": "v6e:4x4",
        "checkpoint": "gs://b/c/3",
        "step": 3,
        "metrics": {"loss": 0.2},
    }


async def test_what_the_author_says_himself_stays(place_with) -> None:
    events = await events_of(succeeded(MADE), place_with, extra={"step": "mine"})
    assert events[MODEL].extra["step"] == "mine"


async def test_a_failure_announces_nothing(place_with) -> None:
    assert (await events_of(failed(), place_with))[MODEL].extra == {}


async def test_an_alias_names_no_asset_yet_and_is_left_to_the_author(place_with) -> None:
    place_with(ScriptedBackend([succeeded(MADE)]))
    events = OutletEventAccessors()
    alias = AssetAlias("models")
    operator = JaxTrainerOperator(task_id="train", train_loop="json:dumps", slice="v6e:4x4", outlets=[alias])
    assert await operator.aexecute({**context(TaskInstance()), "outlet_events": events}) == MADE
    assert events[alias].asset_alias_events == []
