"""Whatever the API server hands over: nothing raises, nothing succeeds by accident, and order does not matter."""

from __future__ import annotations

import copy
import json
import random
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.backends.kuberay import statuses
from airflow_raytpu.backends.kuberay.observing.causes import CAUSES
from airflow_raytpu.backends.kuberay.statuses import Seen
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.verdict import judge
from tests.doubles.kuberay_objects import (
    T0,
    cluster,
    condition,
    event,
    group,
    job,
    pod,
    pods,
    service,
    stamp,
    workload,
)

LIMITS = Deadlines(slice_wait=timedelta(hours=24), total=timedelta(hours=24)).since(T0)
WORDS = st.sampled_from(
    ["", "True", "False", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED", "Running", "Complete", "Failed", "Suspended"]
) | st.text(max_size=8)
LEAVES = st.none() | st.booleans() | st.integers(-5, 2**31) | st.floats(allow_nan=False) | WORDS | st.just(stamp(T0))
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3))
TRANSIENT = ["ImagePullBackOff", "ContainerCreating", "PodInitializing", "Unhealthy", "Evicted", "Preempted", "BackOff"]
PASSING = [
    "",
    "timeout",
    "status: 503",
    "toomanyrequests",
    "exceeded quota: 4 of 4",
    "failed calling webhook",
]


@st.composite
def mangled(draw: st.DrawFn, tree: Any) -> Any:
    """*tree* with up to four of its parts replaced by anything, or taken out."""
    made = copy.deepcopy(tree)
    for _ in range(draw(st.integers(0, 4))):
        inside, key = made, draw(st.sampled_from(sorted(made)))
        while isinstance(inside[key], dict | list) and inside[key] and draw(st.integers(0, 4)):
            inside = inside[key]
            key = draw(st.sampled_from(sorted(inside) if isinstance(inside, dict) else range(len(inside))))
        if inside is made or draw(st.booleans()):
            inside[key] = draw(JSON)
        else:
            del inside[key]
    return made


@st.composite
def scenes(draw: st.DrawFn) -> Seen:
    """A world as it could be, with up to four things in it as they should not be."""
    made = job(
        draw(st.sampled_from(["", "Initializing", "Running", "Complete", "Failed", "Suspended", "Retrying", "?"])),
        draw(st.sampled_from(["", "PENDING", "RUNNING", "STOPPED", "FAILED", "SUCCEEDED", "?"])),
        reason=draw(st.sampled_from(["", "AppFailed", "DeadlineExceeded", "SubmissionFailed", "?"])),
        rayJobInfo={"startTime": stamp(T0 + 5)},
    )
    own = cluster("c", group(replicas=2), owner=made, provisioned=draw(st.booleans()), suspend=draw(st.booleans()))
    there = draw(st.lists(st.sampled_from(pods(own, replicas=2)), unique_by=lambda each: each["metadata"]["name"]))
    ill = pod(own, host=3, waiting=(draw(st.sampled_from(TRANSIENT)), draw(st.sampled_from(PASSING))))
    happened = [
        event(about, draw(st.sampled_from([*TRANSIENT, "FailedToCreateWorkerPod"])), draw(st.sampled_from(PASSING)))
        for about in (made, own, ill)
    ]
    held = workload(made, condition("QuotaReserved", draw(st.sampled_from(["True", "False"])), "Pending", "4 more"))
    serving = service(condition("Ready", "True"), active={"a": (draw(WORDS), "x")})
    world = {
        "job": made,
        "cluster": own,
        "service": serving,
        "pods": [*there, ill],
        "events": happened,
        "workloads": [held],
    }
    world = draw(mangled(world))
    return Seen(**{key: each for key, each in world.items() if key in Seen.__slots__ and isinstance(each, _SHAPE[key])})


_SHAPE = {"job": dict, "cluster": dict, "service": dict, "pods": list, "events": list, "workloads": list}


def everything(seen: Seen, now: float) -> list[Observation]:
    return [
        statuses.of_cluster(seen, now),
        statuses.of_job(seen, now),
        statuses.of_service(seen, now),
        statuses.of_job_on_cluster(seen, None, now, submitted=False, asked=False),
    ]


@given(scenes(), st.floats(0, 1e6))
def test_nothing_raises_and_all_of_it_fits_a_line(seen: Seen, after: float) -> None:
    for observation in everything(seen, T0 + after):
        words = [observation.detail, observation.lacking]
        words += [observation.fault.cause, observation.fault.lever] if observation.fault else []
        assert all(each.isprintable() and len(each) < 1500 for each in words)
        json.dumps(dict(observation.facts))
        judge(observation, LIMITS, T0 + after)
    for obj in (seen.job, seen.cluster, seen.service):
        if obj is not None:
            statuses.cluster_of(obj), statuses.is_submitted(obj), statuses.is_running(obj)
            statuses.is_ready(obj), statuses.slices_due(obj)


@given(JSON, st.lists(JSON, max_size=4))
def test_nothing_raises_on_any_json_whatever(obj: Any, more: list) -> None:
    one = obj if isinstance(obj, dict) else {"metadata": obj, "status": obj, "spec": obj}
    everything(Seen(job=one, cluster=one, service=one, pods=more, events=more, workloads=more), T0)


@given(scenes(), st.floats(0, 1e6))
def test_success_is_only_the_jobs_own(seen: Seen, after: float) -> None:
    for observation in everything(seen, T0 + after):
        status = (seen.job or {}).get("status")
        if observation.job is JobState.SUCCEEDED:
            assert isinstance(status, dict)
            assert status["jobStatus"] == "SUCCEEDED"
        elif isinstance(status, dict) and observation.job is not None:
            assert status.get("jobStatus") != "SUCCEEDED" or observation.job in {JobState.QUEUED, JobState.ABSENT}


@given(scenes(), st.integers(0, 2**32))
def test_the_order_of_what_is_listed_does_not_matter(seen: Seen, seed: int) -> None:
    shuffle = random.Random(seed).sample
    other = Seen(
        job=seen.job,
        cluster=seen.cluster,
        service=seen.service,
        **{
            kind: shuffle(list(listed), len(listed))
            for kind in ("pods", "events", "workloads")
            if (listed := getattr(seen, kind)) is not None
        },
    )
    assert everything(seen, T0 + 500) == everything(other, T0 + 500)


@given(
    st.sampled_from(["ErrImagePull", "ImagePullBackOff", "CreateContainerError", "FailedMount", *TRANSIENT]),
    st.sampled_from(PASSING),
    st.booleans(),
    st.floats(0, 86_000),
)
def test_what_may_pass_is_never_an_end(reason: str, message: str, provisioned: bool, after: float) -> None:
    made = job("Initializing")
    own = cluster("c", owner=made, provisioned=provisioned)
    ill = pod(own, host=3, waiting=(reason, message))
    happened = [event(about, kind, message) for about in (own, ill) for kind in (reason, "FailedToCreateWorkerPod")]
    seen = Seen(job=made, cluster=own, pods=[*pods(own)[:-1], ill], events=happened)
    for observation in (statuses.of_cluster(seen, T0 + after), statuses.of_job(seen, T0 + after)):
        assert observation.cluster in {ClusterState.STARTING, ClusterState.READY}
        assert not judge(observation, LIMITS, T0 + after).phase.final


@given(st.sampled_from([cause for cause in CAUSES if cause.final_after_s is None]), st.floats(0, 1e9))
def test_a_row_that_waits_waits_for_ever(cause: Any, after: float) -> None:
    for reason in cause.reasons:
        own = cluster("c")
        ill = pod(own, waiting=(reason, "x"))
        seen = Seen(cluster=own, pods=[ill], events=[event(own, reason, "x")])
        assert statuses.of_cluster(seen, T0 + after).fault is None
