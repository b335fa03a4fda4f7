"""What every trigger of the package leaves in Airflow's database: plain, small, versioned, and no secret."""

from __future__ import annotations

import importlib
import json
import pkgutil
import time
from dataclasses import asdict
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.exceptions import TaskDeferred
from airflow.triggers.base import BaseTrigger
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import airflow_raytpu.triggers as room
from airflow_raytpu.hooks.raytpu import Place
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.operators import JaxTrainerOperator
from airflow_raytpu.triggers.capacity import CapacityTrigger, Wish
from airflow_raytpu.triggers.watch import WatchTrigger
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, running

CANARY = "canary-b3f1"
WISH = Wish(slice="v6e:4x4", count=1, cluster=None, known=False, begun_at=0.0, timeout_s=60.0)

ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=250)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | numbers | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
requests = st.builds(
    RayRequest,
    identity=st.builds(Identity, deployment=ids, dag_id=ids, task_id=ids, run_id=ids, map_index=st.integers(-1, 9)),
    kind=st.sampled_from(Kind),
    slice=st.sampled_from(["", "v6e:4x4", "v5p:2x2x2*2"]),
    storage=st.sampled_from(["gs://b/a%20b", "file:///s/ü"]),
    limits=st.builds(lambda at: Deadlines().since(at), st.floats(0, 2e9)),
    cluster=st.none() | st.just("shared"),
    arguments=st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), plain, max_size=4),
    code=st.none() | st.just("gs://b/code/x.zip"),
    shared=st.booleans(),
)
wishes = st.builds(
    Wish,
    slice=st.sampled_from(["v6e:4x4", "v6e:4x4*2"]),
    count=st.integers(1, 99),
    cluster=st.none() | ids,
    known=st.booleans(),
    begun_at=st.floats(0, 2e9),
    timeout_s=st.floats(0, 1e7),
)
TRIGGERS: dict[type[BaseTrigger], st.SearchStrategy[BaseTrigger]] = {
    WatchTrigger: st.builds(
        lambda made, *, stated: WatchTrigger(made.to_dict(), "c", stated=stated), requests, stated=st.booleans()
    ),
    CapacityTrigger: st.builds(lambda made, poll: CapacityTrigger(asdict(made), "c", poll), wishes, st.floats(0, 99)),
}


def stored(trigger: BaseTrigger) -> BaseTrigger:
    """*trigger* after its way through the row of Airflow's own model, encrypted, and back."""
    row = Trigger.from_object(trigger)
    return import_string(row.classpath)(**row.kwargs)


def test_each_trigger_of_the_package_is_tried_here() -> None:
    modules = [
        importlib.import_module(f"{room.__name__}.{found.name}") for found in pkgutil.iter_modules(room.__path__)
    ]
    ours = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, BaseTrigger) and kind.__module__ == module.__name__
    }
    assert ours == set(TRIGGERS)


@pytest.mark.parametrize("kind", TRIGGERS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_it_comes_back_from_airflows_database_as_it_went_in(kind: type[BaseTrigger], data: Any) -> None:
    trigger = data.draw(TRIGGERS[kind])
    path, arguments = trigger.serialize()
    assert json.loads(json.dumps(arguments, allow_nan=False)) == arguments
    again = stored(trigger)
    assert type(again) is kind
    assert again.serialize() == (path, arguments)
    assert stored(again).serialize() == (path, arguments)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(made=requests)
def test_the_request_that_comes_back_is_the_one_that_was_made(made: RayRequest) -> None:
    again = stored(WatchTrigger(made.to_dict(), "c"))
    assert isinstance(again, WatchTrigger)
    assert RayRequest.from_dict(again.request) == made
    assert RayRequest.from_dict(again.request).name == made.name


async def test_a_newer_request_is_refused_and_says_what_to_upgrade(place_with) -> None:
    place_with(ScriptedBackend([running()]))
    made = RayRequest(
        identity=Identity(deployment="d", dag_id="digits", task_id="train", run_id="r"),
        kind=Kind.TRAIN,
        slice="v6e:4x4",
        storage="file:///s",
        limits=Deadlines().since(0),
    )
    newer = stored(WatchTrigger(made.to_dict() | {"version": 2, "colour": "red"}, "c"))
    with pytest.raises(RequestError, match=r"version 2, and only 1 is known here.\n.*Upgrade airflow_raytpu"):
        await anext(aiter(newer.run()))


async def test_a_newer_wish_is_refused_and_says_what_to_upgrade(place_with) -> None:
    place_with(ScriptedBackend())
    wish = {"slice": "v6e:4x4", "version": 2, "colour": "red"}
    event = await anext(aiter(stored(CapacityTrigger(wish, "c", 1.0)).run()))
    assert event.payload["code"] == "RT100"
    assert "version 2, and only 1 is known here" in event.payload["cause"]
    assert "Upgrade airflow_raytpu" in event.payload["lever"]


@pytest.fixture
def secretive(monkeypatch, tmp_path):
    """A connection that is all secrets, read as Airflow reads it."""
    from airflow.sdk.execution_time import supervisor
    from airflow.secrets.environment_variables import EnvironmentVariablesBackend

    secret = {"conn_type": "raytpu", "login": CANARY, "password": CANARY, "host": CANARY}
    extra = {"backend": "simulated", "storage": str(tmp_path / "storage")}
    monkeypatch.setenv("AIRFLOW_CONN_RAYTPU_DEFAULT", json.dumps({**secret, "extra": extra}))
    monkeypatch.setattr(supervisor, "ensure_secrets_backend_loaded", lambda: [EnvironmentVariablesBackend()])
    monkeypatch.setattr(Place, "open", lambda self: ScriptedBackend([running(at=time.time())]))


async def test_what_is_deferred_is_small_and_holds_nothing_of_the_connection(secretive) -> None:
    train = JaxTrainerOperator(task_id="train", train_loop="json:dumps", slice="v6e:4x4", train_loop_config={"n": 1})
    with pytest.raises(TaskDeferred) as deferred:
        await train.aexecute(context(TaskInstance()))
    waiting = CapacityTrigger(asdict(WISH), "raytpu_default", 15.0)
    for trigger in (deferred.value.trigger, waiting):
        text = json.dumps(trigger.serialize())
        assert CANARY not in text
        assert len(text) < 2000
        assert CANARY not in repr(trigger)
        assert trigger.serialize()[1]["conn_id"] == "raytpu_default"


@settings(max_examples=20, deadline=None)
@given(made=requests)
def test_a_trigger_adds_next_to_nothing_to_its_request(made: RayRequest) -> None:
    assert len(json.dumps(WatchTrigger(made.to_dict(), "c").serialize())) < len(json.dumps(made.to_dict())) + 200
