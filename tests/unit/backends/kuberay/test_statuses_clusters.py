"""RayClusters: conditions first, whole slices counted by pods, and what is said while one waits."""

from __future__ import annotations

import pytest

from airflow_raytpu.backends.kuberay import statuses
from airflow_raytpu.backends.kuberay.statuses import Seen
from airflow_raytpu.backends.raystatuses import Job
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.placement.topology import TpuSlice
from tests.doubles.kuberay_objects import T0, cluster, condition, event, group, pod, pods, stamp, workload
from tests.unit.backends.simulated.test_state import RECORD

SHORT_OF_TPUS = (
    "0/15 nodes are available: 3 node(s) didn't match Pod's node affinity/selector, 12 Insufficient google.com/tpu. "
    "preemption: 0/15 nodes are available: 15 Preemption is not helpful for scheduling."
)
CPU = group("cpu", replicas=2, hosts=1, chips=0)


def look(made: dict | None, *more_pods: dict, now: float = T0 + 60, **more) -> Observation:
    return statuses.of_cluster(Seen(cluster=made, pods=more_pods, **more), now)


def up(*groups: dict, **more) -> dict:
    return cluster("c", *groups, provisioned=True, head_ready=True, **more)


@pytest.mark.parametrize("provisioned", [True, False], ids=["old counts right", "old counts wrong"])
def test_ready_is_when_the_head_and_every_host_are_ready_whatever_the_operator_counts(provisioned: bool) -> None:
    made = cluster("c", group(replicas=2), CPU, provisioned=provisioned)
    whole = [*pods(made, replicas=2), *(pod(made, group="cpu", replica=each, host=None) for each in range(2))]
    seen = look(made, *whole)
    assert (seen.cluster, seen.job, seen.lacking, seen.fault) == (ClusterState.READY, None, "", None)
    for missing in whole:
        assert look(made, *(each for each in whole if each is not missing)) != seen


def test_a_state_of_ready_with_a_pending_pod_is_not_ready() -> None:
    made = cluster("c")
    made["status"] |= {"state": "ready", "readyWorkerReplicas": 4, "desiredWorkerReplicas": 4}
    assert look(made, *pods(made)[:-1], pod(made, host=3, ready=False)).cluster is ClusterState.STARTING


def test_readiness_latches_and_what_went_missing_is_said() -> None:
    made = up(group(replicas=2))
    seen = look(made, *pods(made, replicas=2)[:-2])
    assert seen.cluster is ClusterState.READY
    assert seen.lacking == "1 of 2 slices whole: slice tpu-1: hosts 2, 3 of 4 missing"
    assert [each["whole"] for each in seen.facts["slices"]] == [True, False]


def test_what_took_a_host_is_said() -> None:
    made = up()
    gone = event(pod(made, host=3), "Preempted", "Preempted by pod kube-system/x on node gke-tpu-1", first=T0 + 50)
    assert "Preempted: Preempted by pod kube-system/x" in look(made, *pods(made)[:-1], events=[gone]).lacking
    reason = {"reason": "Terminated", "message": "Pod was terminated in response to imminent node shutdown."}
    ended = pod(made, host=3)
    ended["status"] |= {"phase": "Failed", **reason}
    seen = look(made, *pods(made)[:-1], ended)
    assert seen.lacking.endswith("host 3 of 4 missing; Terminated: " + reason["message"])


def test_the_facts_are_those_of_the_other_backend() -> None:
    facts = look(up(), *pods(up())).facts
    assert set(facts) == set(RECORD.facts())
    assert set(facts["slices"][0]) == set(RECORD.facts()["slices"][0])
    assert facts == {
        "name": "c",
        "address": "c-head-svc.ml.svc:6379",
        "dashboard": "http://c-head-svc.ml.svc:8265",
        "endpoint": "http://c-head-svc.ml.svc:8000",
        "slices": [{"name": "tpu-0", "hosts": 4, "chips": 16, "whole": True}],
    }


def test_the_heads_service_is_read_and_not_put_together() -> None:
    made = up()
    made["status"]["head"]["serviceName"] = "shortened-svc"
    made["status"]["endpoints"]["dashboard"] = "9999"
    assert look(made, *pods(made)).facts["dashboard"] == "http://shortened-svc.ml.svc:9999"


def test_an_absent_cluster_and_one_on_its_way_out() -> None:
    assert look(None).cluster is ClusterState.ABSENT
    going = up(deletionTimestamp=stamp(T0))
    seen = look(going, *pods(going), now=T0 + 600)
    assert (seen.cluster, seen.detail) == (ClusterState.STOPPING, "being deleted for 10 min")


@pytest.mark.parametrize(
    ("suspend", "conditions"),
    [
        (True, ()),
        (False, (condition("RayClusterSuspending", "True"),)),
        (False, (condition("RayClusterSuspended", "True"),)),
    ],
)
def test_suspended_is_neither_ready_nor_failed(suspend: bool, conditions: tuple) -> None:
    made = up(suspend=suspend, conditions=conditions)
    assert look(made, *pods(made)).cluster is ClusterState.SUSPENDED


def test_pods_of_an_earlier_cluster_of_the_same_name_do_not_count() -> None:
    made, earlier = cluster("c"), cluster("c")
    earlier["metadata"] |= {"uid": "uid-of-the-earlier-one"}
    assert look(made, *pods(earlier)).detail == "0 of 4 hosts scheduled"


def test_a_host_that_is_replaced_is_one_host() -> None:
    made = up()
    leaving = pod(made, host=3)
    leaving["metadata"] = leaving["metadata"] | {"deletionTimestamp": stamp(T0), "name": "c-leaving", "uid": "u"}
    assert look(made, *pods(made)[:-1], leaving).lacking.endswith("host 3 of 4 missing")
    assert look(made, *pods(made), leaving).lacking == ""


def test_pods_of_an_operator_that_labels_no_hosts_are_counted() -> None:
    made = cluster("c", group(replicas=2))
    plain = [pod(made, replica=r, host=h, labelled=False) for r in range(2) for h in range(4)]
    assert look(made, pod(made, head=True), *plain).cluster is ClusterState.READY
    assert look(made, pod(made, head=True), *plain[:-1]).cluster is ClusterState.STARTING


def test_an_autoscaled_group_should_have_what_lies_between_its_bounds() -> None:
    bounds = {"minReplicas": 1, "maxReplicas": 2}
    for replicas, due in ((0, 1), (1, 1), (2, 2), (9, 2)):
        made = cluster("c", group() | bounds | {"replicas": replicas})
        assert look(made).detail.startswith(f"0 of {due * 4} hosts")
    assert look(cluster("c", group(suspend=True)), pod(cluster("c"), head=True)).cluster is ClusterState.READY


def test_a_change_that_kuberay_has_not_seen_is_lacking() -> None:
    made = up(generation=2)
    assert look(made, *pods(made)).lacking == ""
    made["status"]["observedGeneration"] = 1
    assert look(made, *pods(made)).lacking == "KubeRay has not taken up the newest change of the cluster yet"


def test_the_wait_for_nodes_in_the_words_of_scheduler_and_autoscaler() -> None:
    made = cluster("c")
    waiting = [pod(made, host=host, unschedulable=SHORT_OF_TPUS) for host in range(4)]
    told = [
        event(waiting[0], "FailedScheduling", SHORT_OF_TPUS, last=T0 + 40),
        event(
            waiting[0],
            "TriggeredScaleUp",
            "pod triggered scale-up: [{https://www.googleapis.com/x/instanceGroups/gke-tpu-grp 0->4 (max: 4)}]",
            last=T0 + 20,
            kind="Normal",
        ),
        event(
            waiting[1],
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 1 max node group size reached",
            last=T0 + 50,
            kind="Normal",
        ),
    ]
    seen = look(made, pod(made, head=True), *waiting, events=told)
    assert (seen.cluster, seen.fault) == (ClusterState.STARTING, None)
    assert seen.detail == (
        "0 of 4 hosts scheduled: Insufficient google.com/tpu on 12 nodes, node selector or affinity mismatch on 3 "
        "nodes; autoscaler: NotTriggerScaleUp, 1 max node group size reached"
    )
    first = look(made, pod(made, head=True), *waiting, events=told[:2])
    assert first.detail.endswith("autoscaler: TriggeredScaleUp, gke-tpu-grp 0->4 (max: 4)")
    assert look(made, pod(made, head=True), *waiting, events=told, now=T0 + 1e6).fault is None


def test_a_stockout_and_a_project_quota_are_said_and_waited_for() -> None:
    made = cluster("c")
    waiting = pod(made, unschedulable=SHORT_OF_TPUS)
    words = "Node scale up in zones us-east5-b associated with this pod failed: GCE quota exceeded."
    seen = look(made, waiting, events=[event(waiting, "FailedScaleUp", words)], now=T0 + 1e6)
    assert "autoscaler: FailedScaleUp, " + words in seen.detail
    assert seen.fault is None


@pytest.mark.parametrize("reason", ["InvalidRayClusterSpec", "InvalidRayClusterMetadata"])
def test_what_kuberay_refuses_is_told_by_an_event_alone_and_ends_the_wait_at_once(reason: str) -> None:
    made = cluster("c", status=False)
    words = "The RayCluster spec is invalid ml/c: headGroupSpec should have at least one container"
    seen = look(made, events=[event(made, reason, words)], now=T0)
    assert seen.fault is not None
    assert seen.fault.code == "RT106"
    assert words in seen.fault.cause
    assert words in seen.detail


def test_a_refusal_of_an_earlier_cluster_of_the_same_name_does_not_count() -> None:
    made, earlier = cluster("c"), cluster("c")
    earlier["metadata"]["uid"] = "uid-of-the-earlier-one"
    assert look(made, events=[event(earlier, "InvalidRayClusterSpec", "x")]).fault is None


def test_a_refused_change_does_not_end_a_cluster_that_runs() -> None:
    made = up(generation=2)
    told = [event(made, "InvalidRayClusterSpec", "x")]
    for there in (pods(made), pods(made)[:-1], pods(made)[1:]):
        assert look(made, *there, events=told, now=T0 + 1e6).fault is None


def test_an_operator_that_says_nothing_is_named() -> None:
    made = cluster("c", status=False)
    assert look(made, now=T0 + 60).detail == "0 of 4 hosts scheduled"
    words = "no word from the KubeRay operator for 10 min: it may not run, or not watch namespace ml"
    assert look(made, now=T0 + 600).detail == words
    left = cluster("c", status=False)
    left["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    assert look(left, now=T0 + 600).detail == "left to kueue.x-k8s.io/multikueue for 10 min"


def test_a_head_that_does_not_come_up_says_why() -> None:
    made = cluster("c")
    others = pods(made)[1:]
    assert look(made, pod(made, head=True, ready=False), *others).detail == "head pod not ready"
    pulling = pod(made, head=True, waiting=("ErrImagePull", "manifest unknown"))
    assert look(made, pulling, *others).detail == "head pod not ready: ErrImagePull: manifest unknown"
    short = pod(made, head=True, unschedulable="0/2 nodes are available: 2 Insufficient cpu.")
    assert look(made, short, *others).detail == "head pod not ready: Insufficient cpu on 2 nodes"
    both = look(made, short, pod(made, unschedulable=SHORT_OF_TPUS)).detail
    assert both.startswith("head pod not ready: Insufficient cpu on 2 nodes; 0 of 4 hosts scheduled: Insufficient goo")


def test_a_lost_head_is_said_and_heals() -> None:
    made = cluster("c", provisioned=True)
    killed = {"reason": "OOMKilled", "exitCode": 137}
    seen = look(made, pod(made, head=True, terminated=killed), *pods(made)[1:])
    assert (seen.cluster, seen.fault) == (ClusterState.STARTING, None)
    assert seen.detail == "the head pod was lost: OOMKilled (exit code 137)"
    assert look(made, *pods(made)[1:]).detail == "the head pod is gone"
    assert look(made, *pods(made)).cluster is ClusterState.READY


def test_pods_that_cannot_be_made_are_told_by_a_condition_that_outlives_events() -> None:
    quota = (
        'pods "c-tpu-worker-x" is forbidden: exceeded quota: tpu, requested: requests.google.com/tpu=4, used: '
        "requests.google.com/tpu=32, limited: requests.google.com/tpu=32"
    )
    made = cluster("c", conditions=[condition("RayClusterReplicaFailure", "True", "FailedCreateWorkerPod", quota)])
    seen = look(made, pod(made, head=True), now=T0 + 7200)
    assert "limited: requests.google.com/tpu=32" in seen.detail
    assert seen.fault is None


def test_a_cluster_in_a_queue_is_suspended_and_says_where_it_stands() -> None:
    made = cluster("c", suspend=True)
    pending = condition("QuotaReserved", "False", "Pending", "couldn't assign flavors to pod set tpu: insufficient ...")
    seen = look(made, workloads=[workload(made, pending)])
    assert seen.cluster is ClusterState.SUSPENDED
    assert seen.detail.startswith("queue user-queue: couldn't assign flavors")


@pytest.mark.parametrize(
    ("state", "submitted", "asked", "job"),
    [
        (None, False, False, JobState.ABSENT),
        (None, True, False, JobState.ABSENT),
        ("starting", False, False, JobState.QUEUED),
        ("starting", True, False, JobState.UNRECOGNISED),
        ("ready", False, True, JobState.QUEUED),
        ("ready", True, True, JobState.ABSENT),
        ("ready", True, False, JobState.UNRECOGNISED),
        ("suspended", False, False, JobState.QUEUED),
        ("suspended", True, False, JobState.ABSENT),
        ("going", True, False, JobState.ABSENT),
    ],
)
def test_a_job_that_ray_does_not_have(state: str | None, submitted: bool, asked: bool, job: JobState) -> None:
    made = {
        None: None,
        "starting": cluster("c"),
        "ready": up(),
        "suspended": up(suspend=True),
        "going": up(deletionTimestamp=stamp(T0)),
    }[state]
    seen = Seen(cluster=made, pods=pods(made) if state == "ready" and made else ())
    assert statuses.of_job_on_cluster(seen, None, T0, submitted=submitted, asked=asked).job is job


@pytest.mark.parametrize("state", list(JobState))
def test_a_job_that_ray_has_is_as_ray_says(state: JobState) -> None:
    seen = statuses.of_job_on_cluster(
        Seen(cluster=up(), pods=pods(up())), Job(state=state, message="words"), T0, submitted=True
    )
    assert (seen.cluster, seen.job, seen.detail) == (ClusterState.READY, state, "words")


def test_the_slices_that_are_due_bear_the_names_that_ray_gives_them() -> None:
    made = up(group(replicas=2), group("one", hosts=1, topology="2x2"), CPU, group("odd", chips=3))
    assert statuses.slices_due(made) == {
        "tpu-0": TpuSlice.parse("v6e:4x4"),
        "tpu-1": TpuSlice.parse("v6e:4x4"),
        "one-0": TpuSlice.parse("v6e:2x2"),
    }


def test_whose_ray_can_be_asked() -> None:
    assert statuses.is_ready(up())
    assert not statuses.is_ready(cluster("c", provisioned=True))
    assert not statuses.is_ready(cluster("c", status=False))
    assert not statuses.is_ready(up(deletionTimestamp=stamp(T0)))


def make_request(kind: Kind, shared: str | None = None) -> RayRequest:
    return RayRequest(
        identity=Identity(deployment="d", dag_id="d", task_id="t", run_id="r"),
        kind=kind,
        slice="v6e:4x4",
        storage="gs://b/runs",
        limits=Deadlines().since(T0),
        cluster=shared,
    )


def test_observe_chooses_by_what_was_asked_for() -> None:
    seen = Seen(cluster=up(), pods=pods(up()))
    assert statuses.observe(seen, make_request(Kind.CLUSTER), T0).job is None
    assert statuses.observe(seen, make_request(Kind.TRAIN, "c"), T0).job is JobState.QUEUED
    assert statuses.observe(seen, make_request(Kind.TRAIN), T0).job is JobState.ABSENT
    assert statuses.observe(seen, make_request(Kind.SERVE), T0).cluster is ClusterState.ABSENT
