"""The sensor: what an author may say, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred

from airflow_raytpu.model.errors import LostError, RequestError, SliceShapeError
from airflow_raytpu.operators import RayTpuClusterOperator
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.sensors import TpuSliceSensor
from airflow_raytpu.triggers.capacity import CapacityTrigger, Wish
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, tpu_slice

IDLE, BUSY = tpu_slice("idle"), tpu_slice("busy")
GRANTED = {"cluster": "shared", "slices": ["shared-0"]}
CONTEXT = context(TaskInstance(task_id="sensor"))


def sensor(**arguments) -> TpuSliceSensor:
    with DAG("digits", schedule=None):
        return TpuSliceSensor(**{"task_id": "sensor", "slice": "v6e:4x4", "cluster": "shared", **arguments})


def test_what_is_there_already_needs_no_triggerer(place_with):
    backend = ScriptedBackend(pictures=[[IDLE]])
    place_with(backend)
    assert sensor().execute(CONTEXT) == GRANTED
    assert backend.calls == [("slices", "shared")]
    assert backend.closed == 1


def test_it_waits_in_the_triggerer(place_with):
    place_with(ScriptedBackend(pictures=[[BUSY]]), stated=False)
    with pytest.raises(TaskDeferred) as deferred:
        sensor(count=2, timeout=3600, poke_interval=timedelta(seconds=30), conn_id="prod").execute(CONTEXT)
    trigger = deferred.value.trigger
    assert isinstance(trigger, CapacityTrigger)
    assert (trigger.conn_id, trigger.poll_s, trigger.stated) == ("prod", 30.0, False)
    wish = Wish(**trigger.wish)
    assert (wish.slice, wish.count, wish.cluster, wish.known, wish.timeout_s) == ("v6e:4x4", 2, "shared", False, 3600.0)
    assert deferred.value.timeout == timedelta(seconds=3600 + 120)
    assert deferred.value.method_name == "finish"


def test_what_the_trigger_found_is_returned():
    assert sensor().resume_execution("finish", {"event": {"granted": GRANTED}}, CONTEXT) == GRANTED


LATE = {
    "code": "RT203",
    "cause": "Not 1 whole idle slice: 1 present, 1 busy (digits/train).",
    "lever": "Raise timeout.",
}


def test_the_end_of_its_time_is_airflows_own_with_our_picture():
    with pytest.raises(AirflowSensorTimeout, match=r"1 busy \(digits/train\)(.|\n)*RT203"):
        sensor().resume_execution("finish", {"event": LATE}, CONTEXT)
    with pytest.raises(AirflowSkipException):
        sensor(soft_fail=True).resume_execution("finish", {"event": LATE}, CONTEXT)


def test_a_cluster_that_is_gone_is_an_error_that_is_tried_again():
    event = {"code": "RT204", "cause": "There is no cluster shared.", "lever": ""}
    with pytest.raises(LostError, match="shared"):
        sensor().resume_execution("finish", {"event": event}, CONTEXT)


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_it_waits_on_the_worker_where_it_is_told_to(place_with, mode):
    place_with(ScriptedBackend(pictures=[[IDLE]]))
    ti = TaskInstance(task_id="sensor")
    ti.get_first_reschedule_date = lambda context: None
    assert sensor(deferrable=False, mode=mode).execute(context(ti)) == GRANTED


def test_on_the_worker_its_time_ends_with_the_picture_as_well(place_with):
    place_with(ScriptedBackend(pictures=[[BUSY]]))
    waits = {"deferrable": False, "timeout": 0, "poke_interval": 0}
    with pytest.raises(AirflowSensorTimeout, match=r"within 0 s \(timeout\): 1 present, 1 busy \(digits/train\)"):
        sensor(**waits).execute(CONTEXT)
    with pytest.raises(AirflowSkipException):
        sensor(**waits, soft_fail=True).execute(CONTEXT)


def test_any_cluster_will_do_where_none_is_named(place_with):
    backend = ScriptedBackend(pictures=[[BUSY, replace(IDLE, cluster="other")]])
    place_with(backend)
    assert sensor(cluster=None).execute(CONTEXT) == {"cluster": "other", "slices": ["shared-0"]}
    assert backend.calls == [("slices", "")]


def test_a_cluster_task_is_its_upstream_and_its_teardown_waits(place_with):
    with DAG("digits", schedule=None):
        cluster = RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4")
        waits = TpuSliceSensor(task_id="sensor", slice=TpuSlice("v6e", "4x4"), cluster=cluster)
        last = cluster.teardown()
    assert waits.upstream_task_ids == {"cluster"}
    assert "sensor" in last.upstream_task_ids
    waits.cluster = {"cluster": "shared", "slice": "v6e:4x4"}
    place_with(ScriptedBackend(pictures=[[BUSY]]))
    with pytest.raises(TaskDeferred) as deferred:
        waits.execute(CONTEXT)
    assert (deferred.value.trigger.wish["cluster"], deferred.value.trigger.wish["known"]) == ("shared", True)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"slice": "v6e:4x5"}, SliceShapeError, "4x4"),
        ({"slice": "v6e:2x4"}, SliceShapeError, "two ways"),
        ({"count": 0}, RequestError, "from 1 on"),
        ({"count": 1.5}, RequestError, "from 1 on"),
        ({"count": "two"}, RequestError, "from 1 on"),
    ],
)
def test_literals_that_cannot_be_are_refused_when_the_dag_is_parsed(arguments, error, says):
    with pytest.raises(error, match=says):
        sensor(**arguments)


@pytest.mark.parametrize(
    ("rendered", "says"),
    [({"slice": "v6e:4x5"}, "4x4"), ({"count": "none"}, "from 1 on"), ({"cluster": {"x": 1}}, "no cluster")],
)
@pytest.mark.parametrize("deferrable", [True, False])
def test_what_is_rendered_wrong_fails_for_good(place_with, rendered, says, deferrable):
    place_with(ScriptedBackend(pictures=[[IDLE]]))
    waits = sensor(slice="{{ params.slice }}", count="{{ params.count }}", deferrable=deferrable)
    for name, value in {"slice": "v6e:4x4", "count": "1", **rendered}.items():
        setattr(waits, name, value)
    with pytest.raises(AirflowFailException, match=says):
        waits.execute(CONTEXT)


def test_a_cluster_that_resolves_to_nothing_is_not_any_cluster(place_with):
    backend = ScriptedBackend(pictures=[[IDLE]])
    place_with(backend)
    asked = sensor(cluster="{{ params.cluster }}")
    asked.cluster = None
    with pytest.raises(AirflowFailException, match="cluster is None"):
        asked.execute(CONTEXT)
    assert backend.calls == []
