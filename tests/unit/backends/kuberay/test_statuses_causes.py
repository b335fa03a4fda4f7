"""Which troubles are final and after how long, and which wait: as they look on a real cluster."""

from __future__ import annotations

import pytest

from airflow_raytpu.backends.kuberay import statuses
from airflow_raytpu.backends.kuberay.observing.causes import CAUSES, Trouble, first_fault
from airflow_raytpu.backends.kuberay.statuses import Seen
from airflow_raytpu.model.errors import RayTpuError, from_code
from airflow_raytpu.model.observation import ClusterState
from tests.doubles.kuberay_objects import IMAGE, T0, cluster, event, pod, pods

NEVER = None
CREATE = "Failed to create worker Pod for the cluster ml/c, "
DENIED = 'admission webhook "validation.policy.example" denied the request: '
PULL = f'failed to pull and unpack image "{IMAGE}": '


def container(reason: str, message: str = "", **more) -> dict:
    made = cluster("c")
    return {"cluster": made, "pods": [pod(made, head=True), pod(made, waiting=(reason, message), **more)]}


def unschedulable(message: str) -> dict:
    made = cluster("c")
    return {
        "cluster": made,
        "pods": [pod(made, head=True), pod(made, unschedulable=f"0/12 nodes are available: {message}")],
    }


def told(reason: str, message: str, *, of_pod: bool = False) -> dict:
    made = cluster("c")
    waiting = pod(made, ready=False)
    about = waiting if of_pod else made
    return {
        "cluster": made,
        "pods": [pod(made, head=True), waiting],
        "events": [event(about, reason, message, last=T0 + 10_000)],
    }


@pytest.mark.parametrize(
    ("seen", "final_after_s", "code"),
    [
        # Images.
        (container("InvalidImageName", "couldn't parse image name"), 0, "RT106"),
        (container("ErrImageNeverPull", "image is not present with pull policy of Never"), 30, "RT208"),
        (container("ErrImagePull", PULL + f"{IMAGE}: not found"), 300, "RT208"),
        (container("ErrImagePull", "manifest unknown"), 300, "RT208"),
        (container("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'), NEVER, ""),
        (container("ErrImagePull", PULL + "failed to authorize: unexpected status: 403 Forbidden"), 600, "RT210"),
        (container("ErrImagePull", PULL + "unexpected status: 503 Service Unavailable"), NEVER, ""),
        (container("ErrImagePull", PULL + "toomanyrequests: retry later"), NEVER, ""),
        (container("ErrImagePull", "dial tcp: lookup europe-docker.pkg.dev: no such host"), NEVER, ""),
        (container("ErrImagePull", "read: connection reset by peer"), NEVER, ""),
        # Secrets, users, volumes.
        (container("CreateContainerConfigError", 'secret "hf-token" not found'), 300, "RT208"),
        (container("CreateContainerConfigError", "couldn't find key token in Secret ml/hf"), 300, "RT208"),
        (container("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"), 30, "RT208"),
        (container("CreateContainerConfigError", "failed to sync secret cache: timed out"), NEVER, ""),
        (
            told("FailedMount", 'MountVolume.SetUp failed for volume "hf" : secret "hf-token" not found', of_pod=True),
            300,
            "RT208",
        ),
        (
            told(
                "FailedMount",
                'MountVolume.SetUp failed for volume "data" : rpc error: code = NotFound desc = bucket "x" does not',
                of_pod=True,
            ),
            300,
            "RT208",
        ),
        (
            told("FailedMount", "rpc error: code = PermissionDenied desc = storage.objects.list", of_pod=True),
            600,
            "RT210",
        ),
        (told("FailedMount", "rpc error: code = DeadlineExceeded desc = x", of_pod=True), NEVER, ""),
        (unschedulable('persistentvolumeclaim "data" not found'), 300, "RT208"),
        (unschedulable("12 Insufficient google.com/tpu."), NEVER, ""),
        (unschedulable("12 node(s) didn't match Pod's node affinity/selector."), NEVER, ""),
        # Containers that end by themselves.
        (container("CrashLoopBackOff", "back-off 40s restarting", restarts=3), NEVER, ""),
        (container("CrashLoopBackOff", "back-off 5m0s restarting", restarts=5), 30, "RT208"),
        (container("ContainerCreating"), NEVER, ""),
        (container("PodInitializing"), NEVER, ""),
        (container("NeverHeardOf", "secret not found denied"), NEVER, ""),
        # Refused objects.
        (told("InvalidRayClusterSpec", "The RayCluster spec is invalid"), 0, "RT106"),
        (told("InvalidRayClusterStatus", "Suspending and Suspended are both true"), 300, "RT106"),
        (told("FailedToCreateWorkerPod", CREATE + "TPU topology not specified"), 30, "RT106"),
        (told("FailedToCreateWorkerPod", CREATE + DENIED + "no label team"), 30, "RT106"),
        (told("FailedToCreateHeadPod", 'Pod "c-head" is invalid: spec.containers[0].image: Required'), 30, "RT106"),
        (
            told("FailedToCreateWorkerPod", 'pods "x" is forbidden: violates PodSecurity "restricted"'),
            30,
            "RT210",
        ),
        (
            told("FailedToCreateHeadPod", 'error looking up service account ml/x: serviceaccount "x" not found'),
            300,
            "RT211",
        ),
        (
            told("FailedToCreateWorkerPod", 'pods "x" is forbidden: no PriorityClass with name high was found'),
            300,
            "RT211",
        ),
        (told("FailedToCreateWorkerPod", 'pods "x" is forbidden: exceeded quota: tpu, requested: 4'), NEVER, ""),
        (told("FailedToCreateWorkerPod", CREATE + DENIED + "existing TPU worker missing TPU_WORKER_ID"), NEVER, ""),
        (
            told(
                "FailedToCreateWorkerPod",
                "Internal error occurred: failed calling webhook: no endpoints available for service "
                '"kuberay-tpu-webhook"',
            ),
            NEVER,
            "",
        ),
        (told("FailedToCreateWorkerPod", "etcdserver: request timed out"), NEVER, ""),
        # What takes pods away, and probes.
        (told("Preempted", "Preempted by pod x", of_pod=True), NEVER, ""),
        (told("Evicted", "The node was low on resource: memory", of_pod=True), NEVER, ""),
        (told("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503", of_pod=True), NEVER, ""),
    ],
)
def test_the_table(seen: dict, final_after_s: float | None, code: str) -> None:
    observe = lambda after: statuses.of_cluster(Seen(**seen), T0 + after)  # noqa: E731 - three calls of it
    if final_after_s is None:
        assert (observe(1e7).cluster, observe(1e7).fault) == (ClusterState.STARTING, None)
        return
    if final_after_s:
        early = observe(final_after_s - 1)
        assert (early.cluster, early.fault) == (ClusterState.STARTING, None)
    fault = observe(final_after_s).fault
    assert observe(final_after_s).cluster is ClusterState.FAILED
    assert fault is not None
    assert fault.code == code
    assert fault.lever
    assert fault.cause.endswith(".")


def test_a_back_off_names_no_cause_but_the_event_of_the_pull_does() -> None:
    made = cluster("c")
    waiting = pod(made, waiting=("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'))
    failed = event(waiting, "Failed", f'Failed to pull image "{IMAGE}": code = NotFound desc = {IMAGE}: not found')
    again = event(waiting, "Failed", "Error: ErrImagePull", last=T0 + 9)
    fault = statuses.of_cluster(Seen(cluster=made, pods=[waiting], events=[again, failed]), T0 + 300).fault
    assert fault is not None
    assert fault.cause == (
        "The image does not exist (container ray of pod c-tpu-worker-00qq, for 5 min): ImagePullBackOff: Failed to "
        f'pull image "{IMAGE}": code = NotFound desc = {IMAGE}: not found.'
    )


def test_a_container_that_ends_by_itself_says_how() -> None:
    last = {"reason": "Error", "exitCode": 1, "message": "ModuleNotFoundError: ray"}
    made = cluster("c")
    looping = pod(made, head=True, waiting=("CrashLoopBackOff", "back-off 5m0s"), restarts=6, last=last)
    seen = statuses.of_cluster(Seen(cluster=made, pods=[looping]), T0 + 600)
    assert seen.fault is not None
    assert "6 restarts" in seen.fault.cause
    assert "Error: ModuleNotFoundError: ray (exit code 1)" in seen.fault.cause


def test_what_a_later_event_has_overtaken_is_over() -> None:
    made = cluster("c")
    waiting = pod(made, ready=False)
    mount = event(waiting, "FailedMount", 'secret "hf-token" not found', first=T0, last=T0 + 100)
    pulled = event(waiting, "Pulled", "Successfully pulled image", first=T0 + 200, kind="Normal")
    for happened, over in (([mount], False), ([mount, pulled], True), ([pulled, mount], True)):
        seen = statuses.of_cluster(Seen(cluster=made, pods=[waiting], events=happened), T0 + 900)
        assert (seen.fault is None) is over
    scheduled = event(waiting, "NotTriggerScaleUp", "x", first=T0 + 300, kind="Normal")
    assert statuses.of_cluster(Seen(cluster=made, pods=[waiting], events=[mount, scheduled]), T0 + 900).fault


def test_an_event_is_of_an_object_by_uid_or_where_it_has_none_by_name() -> None:
    made = cluster("c", status=False)
    said = event(made, "InvalidRayClusterSpec", "x")
    assert statuses.of_cluster(Seen(cluster=made, events=[said]), T0).fault
    del said["involvedObject"]["uid"]
    assert statuses.of_cluster(Seen(cluster=made, events=[said]), T0).fault
    for key, value in (("name", "d"), ("kind", "RayJob")):
        other = said | {"involvedObject": said["involvedObject"] | {key: value}}
        assert statuses.of_cluster(Seen(cluster=made, events=[other]), T0).fault is None


def test_no_pod_ends_a_cluster_that_was_ready_or_a_pod_that_is() -> None:
    made = cluster("c", provisioned=True, head_ready=True)
    looping = pod(made, host=3, waiting=("CrashLoopBackOff", ""), restarts=99)
    seen = statuses.of_cluster(Seen(cluster=made, pods=[*pods(made)[:-1], looping]), T0 + 1e6)
    assert (seen.cluster, seen.fault) == (ClusterState.READY, None)


def test_a_trouble_that_nobody_dates_is_not_believed_until_it_is() -> None:
    assert Trouble(reason="ErrImagePull", message="x: not found").fault(T0) is None
    assert Trouble(reason="InvalidImageName").fault(T0) is not None


def test_the_longest_standing_fault_is_saidwhatever_the_order() -> None:
    new = Trouble(reason="ErrImagePull", message="not found", since=T0, who="b")
    old = Trouble(reason="CreateContainerConfigError", message='secret "x" not found', since=T0 - 50, who="a")
    waits = Trouble(reason="NeverHeardOf", since=T0 - 99)
    for order in ([new, old, waits], [waits, old, new]):
        fault = first_fault(order, T0 + 400)
        assert fault is not None
        assert 'secret "x" not found' in fault.cause


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: (cause.reasons or ("any",))[0])
def test_every_row_gives_its_reason_and_every_final_one_its_lever(cause) -> None:
    assert cause.why
    if cause.final_after_s is not None:
        assert cause.what
        assert cause.lever
        assert type(from_code(cause.error.code, "x")) is not RayTpuError
