"""RayServices: ready is more than KubeRay's own Ready, and what never becomes ready says so."""

from __future__ import annotations

import pytest

from airflow_raytpu.backends.kuberay import statuses
from airflow_raytpu.backends.kuberay.statuses import Seen
from airflow_raytpu.model.observation import ClusterState, Observation
from tests.doubles.kuberay_objects import T0, cluster, condition, event, job, pod, pods, service, stamp, workload

READY = condition("Ready", "True", "NonZeroServeEndpoints")
FULL = "0/3 nodes are available: 3 Insufficient google.com/tpu."
RUNNING = {"digits": ("RUNNING", "")}


def look(made: dict | None, now: float = T0 + 60, **more) -> Observation:
    return statuses.of_service(Seen(service=made, **more), now)


@pytest.mark.parametrize(
    ("made", "state"),
    [
        (service(READY, active=RUNNING), ClusterState.READY),
        (service(READY, active=RUNNING, generation=2), ClusterState.STARTING),
        (service(READY, condition("UpgradeInProgress", "True"), active=RUNNING, pending={}), ClusterState.STARTING),
        (service(READY, condition("UpgradeInProgress", "False"), active=RUNNING), ClusterState.READY),
        (service(READY, active={}), ClusterState.STARTING),
        (service(READY, active=RUNNING | {"other": ("DEPLOYING", "")}), ClusterState.STARTING),
        (service(READY, active=RUNNING | {"other": ("UNHEALTHY", "")}), ClusterState.STARTING),
        (service(READY, active={"digits": ("DREAMING", "")}), ClusterState.STARTING),
        (service(condition("Ready", "False", "ZeroServeEndpoints"), active=RUNNING), ClusterState.STARTING),
        (service(active=RUNNING), ClusterState.STARTING),
        (service(READY, active=RUNNING, spec={"suspend": True}), ClusterState.SUSPENDED),
        (service(condition("Suspended", "True")), ClusterState.SUSPENDED),
        (service(READY, active=RUNNING, deletionTimestamp=stamp(T0)), ClusterState.STOPPING),
        (None, ClusterState.ABSENT),
    ],
)
def test_the_table(made: dict | None, state: ClusterState) -> None:
    seen = look(made)
    assert (seen.cluster, seen.job, seen.fault) == (state, None, None)


def test_the_endpoint_is_the_services_own_and_outlives_clusters() -> None:
    made = service(READY, active=RUNNING)
    own = cluster("dg-serve-abcdefgh-aaaaa", owner=made, provisioned=True)
    facts = look(made, cluster=own, pods=pods(own)).facts
    assert facts["endpoint"] == "http://dg-serve-abcdefgh-serve-svc.ml.svc:8000"
    assert facts["dashboard"] == "http://dg-serve-abcdefgh-aaaaa-head-svc.ml.svc:8265"
    assert facts["name"] == "dg-serve-abcdefgh"
    assert [each["whole"] for each in facts["slices"]] == [True]
    assert set(look(made).facts) == set(facts)


@pytest.mark.parametrize(
    ("made", "final_after_s", "code", "words"),
    [
        (service(condition("Ready", "False", "ValidationFailed", "spec is bad")), 0, "RT106", "spec is bad"),
        (service(condition("Ready", "False", "InitializingTimeout", "1800 s")), 0, "RT205", "1800 s"),
        (
            service(condition("Ready", "False", "ZeroServeEndpoints"), pending={"a": ("DEPLOY_FAILED", "No module x")}),
            30,
            "RT304",
            "app a DEPLOY_FAILED: No module x",
        ),
        (service(READY, active={"a": ("DEPLOY_FAILED", "OOM")}), 30, "RT304", "app a DEPLOY_FAILED: OOM"),
        (service(READY, active={"a": ("DEPLOY_FAILED", "OOM")}, generation=2), None, "", ""),
        (service(READY, active={"a": ("UNHEALTHY", "a replica died")}), None, "", ""),
        (service(condition("Ready", "False", "Initializing"), pending={"a": ("DEPLOYING", "")}), None, "", ""),
    ],
)
def test_what_ends_the_wait(made: dict, final_after_s: float | None, code: str, words: str) -> None:
    if final_after_s is None:
        assert look(made, now=T0 + 1e7).fault is None
        return
    if final_after_s:
        assert look(made, now=T0 + final_after_s - 1).fault is None
    fault = look(made, now=T0 + final_after_s).fault
    assert fault is not None
    assert fault.code == code
    assert words in fault.cause


def test_the_wait_says_what_the_applications_and_the_cluster_wait_for() -> None:
    made = service(
        condition("Ready", "False", "ZeroServeEndpoints", "No Serve endpoints"),
        pending={
            "digits": ("DEPLOYING", "1 replica is not scheduled yet"),
            "ok": ("RUNNING", ""),
        },
    )
    own = cluster("dg-serve-abcdefgh-bbbbb", owner=made)
    short = [pod(own, host=host, unschedulable=FULL) for host in (0, 1)]
    assert look(made, cluster=own, pods=[pod(own, head=True), *short]).detail == (
        "app digits DEPLOYING: 1 replica is not scheduled yet; ZeroServeEndpoints: No Serve endpoints; "
        "0 of 4 hosts scheduled: Insufficient google.com/tpu on 3 nodes"
    )


def test_a_cluster_that_is_denied_or_queued_is_told_on_the_service() -> None:
    made = service()
    denied = event(made, "FailedToCreateRayCluster", "admission webhook denied: TPU topology not specified")
    fault = look(made, events=[denied]).fault
    assert fault is not None
    assert fault.code == "RT106"
    queued = look(made, workloads=[workload(made, condition("QuotaReserved", "False", "Pending", "16 more needed"))])
    assert (queued.cluster, queued.detail) == (ClusterState.SUSPENDED, "queue user-queue: 16 more needed")


def test_the_cluster_under_a_service_is_the_one_that_comes_up() -> None:
    assert statuses.cluster_of(service(active=RUNNING)) == "dg-serve-abcdefgh-aaaaa"
    assert statuses.cluster_of(service(active=RUNNING, pending={})) == "dg-serve-abcdefgh-bbbbb"
    assert statuses.cluster_of(service()) == ""
    assert statuses.is_submitted(service(active=RUNNING))
    assert not statuses.is_submitted(service())
    assert not statuses.is_submitted(job())
