"""The scripted controller walks the sequences of KubeRay 1.7.0, whole objects that the CRDs accept."""

from __future__ import annotations

import pytest

from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.controller import ScriptedController
from tests.doubles.kubernetes.refusal import Refusal
from tests.unit.doubles.asking import pod_template, ray_cluster, worker_group


def tpu_cluster(name="c", **spec):
    template = pod_template(resources={"limits": {"google.com/tpu": "4"}})
    selector = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "4x4"}
    template["spec"]["nodeSelector"] = selector
    group = worker_group(numOfHosts=4, replicas=1, template=template)
    return ray_cluster(name, rayVersion="2.60.0", workerGroupSpecs=[group], authOptions={"mode": "token"}, **spec)


def ray_job(**spec):
    metadata = {"name": "j", "labels": {"ours": "yes"}, "annotations": {"note": "kept"}}
    spec = {"entrypoint": "x", "submissionMode": "HTTPMode", "jobId": "id", "shutdownAfterJobFinishes": True, **spec}
    return {"metadata": metadata, "spec": {"rayClusterSpec": tpu_cluster()["spec"], **spec}}


@pytest.fixture
def k(crds):
    return Contents(crds)


@pytest.fixture
def controller(k):
    return ScriptedController(k)


def statuses(item):
    return item["status"]["jobDeploymentStatus"], item["status"].get("jobStatus", "")


def reasons(k, item):
    about = item["metadata"]["uid"]
    return {event["reason"] for event in k.items("events") if event["involvedObject"]["uid"] == about}


def condition(item, kind):
    return next(each["status"] for each in item["status"]["conditions"] if each["type"] == kind)


async def test_a_job_from_its_first_status_to_its_last(k, controller):
    k.put("rayjobs", ray_job())
    expected = {
        "initializing": ("Initializing", ""),
        "provisioning": ("Initializing", ""),
        "starting": ("Initializing", ""),
        "ready": ("Initializing", ""),
        "submitted": ("Running", "PENDING"),
        "running": ("Running", "RUNNING"),
        "succeeded": ("Running", "SUCCEEDED"),
        "complete": ("Complete", "SUCCEEDED"),
    }
    for step, pair in expected.items():
        assert statuses(await controller.step(step)) == pair
    job = controller.top()
    assert job["status"]["jobId"] == "id"
    assert job["status"]["rayClusterStatus"]["state"] == "ready"
    assert job["metadata"]["finalizers"] == ["ray.io/rayjob-finalizer"]
    cluster = controller.cluster()
    assert cluster["metadata"]["name"] == job["status"]["rayClusterName"]
    assert cluster["metadata"]["annotations"] == {"note": "kept"}
    assert cluster["metadata"]["labels"]["ours"] == "yes"
    await controller.step("cleaned")
    assert k.items("rayclusters") == []


async def test_a_cluster_waits_for_nodes_and_then_for_its_image(k, controller):
    k.put("rayclusters", tpu_cluster())
    await controller.step("provisioning")
    cluster, worker = controller.cluster(), controller.worker()
    assert (condition(cluster, "HeadPodReady"), condition(cluster, "RayClusterProvisioned")) == ("True", "False")
    assert "state" not in cluster["status"]
    assert (cluster["status"]["desiredWorkerReplicas"], cluster["status"]["desiredTPU"]) == (4, "16")
    assert {"FailedScheduling", "TriggeredScaleUp"} <= reasons(k, worker)
    await controller.step("starting")
    assert controller.worker()["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
    ready = await controller.step("ready")
    assert ready["status"]["state"] == "ready"
    assert condition(ready, "RayClusterProvisioned") == "True"
    assert k.find("secrets", "c")["data"]["auth_token"]
    assert k.find("services", "c-head-svc")


async def test_pods_of_a_slice(k, controller):
    k.put("rayclusters", tpu_cluster())
    await controller.step("provisioning")
    workers = controller.pods.workers(controller.cluster())
    labels = [pod["metadata"]["labels"] for pod in workers]
    assert [each["ray.io/replica-host-index"] for each in labels] == ["0", "1", "2", "3"]
    assert len({each["ray.io/worker-group-replica-name"] for each in labels}) == 1
    assert labels[0]["app.kubernetes.io/name"] == "kuberay"
    env = {each["name"]: each["value"] for each in workers[2]["spec"]["containers"][0]["env"]}
    assert env == {"TPU_WORKER_ID": "2", "TPU_NAME": "w-0"}
    assert workers[0]["metadata"]["ownerReferences"][0]["kind"] == "RayCluster"


async def test_a_lost_host_leaves_the_cluster_ready_and_its_replica_is_replaced_whole(k, controller):
    k.put("rayclusters", tpu_cluster())
    await controller.step("ready")
    before = [pod["metadata"]["name"] for pod in controller.pods.workers(controller.cluster())]
    controller.host_fails(2)
    cluster = controller.cluster()
    assert cluster["status"]["readyWorkerReplicas"] == 3
    assert cluster["status"]["state"] == "ready"  # it latches
    assert condition(cluster, "RayClusterProvisioned") == "True"
    controller.replica_is_replaced(2)
    after = controller.pods.workers(controller.cluster())
    assert not {pod["metadata"]["name"] for pod in after} & set(before)
    assert {pod["status"]["phase"] for pod in after} == {"Pending"}
    assert controller.cluster()["status"]["readyWorkerReplicas"] == 0


async def test_a_lost_head(k, controller):
    k.put("rayclusters", tpu_cluster())
    await controller.step("ready")
    controller.head_is_lost()
    assert condition(controller.cluster(), "HeadPodReady") == "False"
    assert controller.cluster()["status"]["state"] == "ready"


async def test_an_image_that_cannot_be_pulled(k, controller):
    k.put("rayclusters", tpu_cluster())
    await controller.step("starting")
    controller.image_pull_fails()
    worker = controller.worker()
    assert worker["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ImagePullBackOff"
    assert "Failed" in reasons(k, worker)


async def test_no_scale_up(k, controller):
    k.put("rayclusters", tpu_cluster())
    await controller.step("provisioning")
    controller.unschedulable("no quota for TPUs")
    assert "NotTriggerScaleUp" in reasons(k, controller.worker())


async def test_a_spec_that_kuberay_refuses_is_an_event_and_nothing_else(k, controller):
    body = tpu_cluster(name="c")
    body["spec"]["headGroupSpec"]["rayStartParams"] = {"labels": "a=b"}
    k.put("rayclusters", body)
    cluster = await controller.step("provisioning")
    assert "status" not in cluster
    assert reasons(k, cluster) == {"InvalidRayClusterSpec"}
    assert k.items("pods") == []


@pytest.mark.parametrize(
    "spec",
    [
        {"shutdownAfterJobFinishes": False, "ttlSecondsAfterFinished": 5},
        {"runtimeEnvYAML": "a: [b"},
        {"activeDeadlineSeconds": -1},
        {"shutdownAfterJobFinishes": False, "suspend": True},
    ],
)
async def test_a_job_that_kuberay_refuses(k, controller, spec):
    k.put("rayjobs", ray_job(**spec))
    job = await controller.step("initializing")
    assert statuses(job) == ("ValidationFailed", "")
    assert job["status"]["reason"] == "ValidationFailed"
    assert k.items("rayclusters") == []


async def test_a_job_whose_name_is_too_long(k, controller):
    body = ray_job()
    body["metadata"]["name"] = "j" * 48
    k.put("rayjobs", body)
    assert statuses(await controller.step("initializing"))[0] == "ValidationFailed"


async def test_the_webhook_leaves_a_job_in_initializing(k, controller):
    controller.webhook_denies()
    body = ray_job()
    body["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["numOfHosts"] = 3
    k.put("rayjobs", body)
    job = await controller.step("ready")
    assert statuses(job) == ("Initializing", "")
    assert "FailedToCreateRayCluster" in reasons(k, job)
    with pytest.raises(Refusal, match="denied the request"):
        k.put("rayclusters", {"metadata": {"name": "c"}, "spec": body["spec"]["rayClusterSpec"]})


async def test_a_quota(k, controller):
    k.put("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"requests.google.com/tpu": "8"}}})
    k.put("rayclusters", tpu_cluster())
    cluster = await controller.step("provisioning")
    assert "FailedToCreateWorkerPod" in reasons(k, cluster)
    assert condition(cluster, "RayClusterReplicaFailure") == "True"


async def test_the_two_statuses_of_a_job_that_fails(k, controller):
    k.put("rayjobs", ray_job())
    await controller.step("running")
    controller.ends("FAILED", "exit code 1")
    assert statuses(controller.top()) == ("Running", "FAILED")
    job = await controller.step("complete")
    assert statuses(job) == ("Failed", "FAILED")
    assert (job["status"]["reason"], job["status"]["failed"]) == ("AppFailed", 1)


async def test_a_deadline(k, controller):
    k.put("rayjobs", ray_job())
    await controller.step("running")
    controller.fails("DeadlineExceeded")
    assert statuses(controller.top()) == ("Failed", "RUNNING")


async def test_a_retry_has_another_cluster(k, controller):
    k.put("rayjobs", ray_job())
    job = await controller.step("running")
    controller.retries()
    again = controller.top()
    assert again["status"]["rayClusterName"] != job["status"]["rayClusterName"]
    assert statuses(again) == ("Initializing", "")
    assert statuses(await controller.step("complete")) == ("Complete", "SUCCEEDED")


async def test_kueue(k, controller):
    k.put("rayjobs", ray_job())
    controller.is_queued()
    workload = controller.queueing.workload(controller.top())
    assert condition(workload, "QuotaReserved") == "False"
    assert controller.top()["spec"]["suspend"]
    assert statuses(controller.top()) == ("Suspended", "")
    controller.is_admitted()
    assert condition(controller.queueing.workload(controller.top()), "Admitted") == "True"
    assert statuses(await controller.step("running")) == ("Running", "RUNNING")
    controller.is_evicted("PodsReadyTimeout")
    assert statuses(controller.top()) == ("Suspended", "")
    assert condition(controller.queueing.workload(controller.top()), "Evicted") == "True"
    assert k.items("rayclusters") == []
    controller.is_admitted()
    assert statuses(await controller.step("complete")) == ("Complete", "SUCCEEDED")


async def test_a_service_gets_ready(k, controller):
    spec = {"rayClusterConfig": tpu_cluster()["spec"], "serveConfigV2": "applications: []"}
    k.put("rayservices", {"metadata": {"name": "s"}, "spec": spec})
    service = await controller.step("ready")
    assert condition(service, "Ready") == "False"
    assert service["status"]["pendingServiceStatus"]["rayClusterStatus"]["state"] == "ready"
    controller.services.applications(service, {"app": {"status": "RUNNING", "message": ""}})
    service = await controller.step("running")
    assert condition(service, "Ready") == "True"
    assert service["status"]["numServeEndpoints"] == 1
    assert service["status"]["activeServiceStatus"]["applicationStatuses"]["app"]["status"] == "RUNNING"
    assert k.find("services", "s-serve-svc")
