"""The double of KubeRay's controller really runs what a manifest says, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import base64
import json

import aiohttp
import psutil
import pytest

from airflow_raytpu.backends.simulated import cluster as simulated
from airflow_raytpu.backends.simulated.state import Arrivals
from tests.contract.harness import FILES
from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.controller import RealController
from tests.doubles.kubernetes.kinds import crds_folder
from tests.doubles.kubernetes.server import FakeKubernetes
from tests.simulated_cluster import processes_of, stage_files

pytestmark = pytest.mark.cluster

GREETING = """
from ray import serve

@serve.deployment(ray_actor_options={"num_cpus": 0.1})
class Greeting:
    async def __call__(self, request):
        return "hello"

app = Greeting.bind()
"""

_PLACE = ("ray.io", "v1", "default")
_WITHIN_S = 150.0


def ray_job(code: str, request: str) -> dict:
    """Written by hand: two hosts of four chips make one v6e 2x4."""
    resources = {"cpu": "4", "memory": "8Gi", "google.com/tpu": "4"}
    selector = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "2x4"}
    worker = {
        "metadata": {"labels": {"ours": "yes"}},
        "spec": {
            "nodeSelector": selector,
            "containers": [{"name": "ray", "image": "r", "resources": {"limits": resources, "requests": resources}}],
        },
    }
    group = {"groupName": "tpu", "replicas": 1, "minReplicas": 1, "maxReplicas": 1, "numOfHosts": 2}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "by-hand", "labels": {"ours": "yes"}, "annotations": {"note": "kept"}},
        "spec": {
            "submissionMode": "HTTPMode",
            "jobId": "by-hand-job",
            "entrypoint": f"python -m airflow_raytpu.runtime {request}",
            "runtimeEnvYAML": f"working_dir: {code}\n",
            "metadata": {"owner": "me"},
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 3,
            "activeDeadlineSeconds": 300,
            "rayClusterSpec": {
                "rayVersion": "2.60.0",
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    "rayStartParams": {},
                    "template": {"spec": {"containers": [{"name": "ray", "image": "r"}]}},
                },
                "workerGroupSpecs": [{**group, "rayStartParams": {}, "template": worker}],
            },
        },
    }


def stage(folder, **arguments):
    """Code and request as the backend stages them; their URIs."""
    (folder / "outbox").mkdir()
    request = folder / "outbox" / "by-hand.request.json"
    arguments = {"answer": 42, "lines": 3, **arguments}
    request.write_text(json.dumps({"name": "by-hand", "storage": folder.as_uri(), "arguments": arguments}))
    return stage_files(FILES, folder), request.as_uri()


async def states_of(custom, name):
    """Every pair of statuses that a watch sees, until the job is over."""
    from kubernetes_asyncio import watch

    seen = []
    async for event in watch.Watch().stream(custom.list_namespaced_custom_object, *_PLACE, "rayjobs"):
        status = event["raw_object"].get("status") or {}
        pair = status.get("jobDeploymentStatus", ""), status.get("jobStatus", "")
        if pair not in seen[-1:]:
            seen.append(pair)
        if pair[0] in {"Complete", "Failed", "ValidationFailed"}:
            return seen, status
    raise AssertionError(f"{name} is not over: {seen}")


async def until(condition):
    while not condition():
        await asyncio.sleep(0.1)


async def test_a_job_written_by_hand_succeeds(short_path, tmp_path):
    from kubernetes_asyncio.client import CustomObjectsApi

    crds = crds_folder()
    if crds is None:
        pytest.skip("KubeRay's CRDs are not here; RAYTPU_KUBERAY_CRDS names their folder")
    async with (
        FakeKubernetes(crds=crds) as k,
        RealController(k, short_path) as controller,
        await TestAccess(k.url, k.token).client() as client,
        asyncio.timeout(_WITHIN_S),
    ):
        custom = CustomObjectsApi(client)
        await custom.create_namespaced_custom_object(*_PLACE, "rayjobs", ray_job(*stage(tmp_path)))
        seen, status = await states_of(custom, "by-hand")
        assert seen[0] == ("", "")
        assert seen[-2:] == [("Running", "SUCCEEDED"), ("Complete", "SUCCEEDED")]
        assert ("Initializing", "") in seen
        assert json.loads((tmp_path / "outbox" / "by-hand.result.json").read_text())["value"] == {"answer": 42}

        name = status["rayClusterName"]
        await check_cluster(k, name)
        assert "zeile 2" in await log_through_the_proxy(k, name)

        [found] = simulated.living(short_path)
        assert [(part.shape, len(part.hosts)) for part in found.record.slices] == [("v6e:2x4@ct6e-standard-4t", 2)]
        await until(lambda: k.find("rayclusters", name) is None)  # the TTL is over
        await controller.settled()
        assert processes_of(found) == []
        assert not found.folder.exists()
        await until(lambda: not k.items("pods"))
        assert k.find("secrets", name) is None
        await custom.delete_namespaced_custom_object(*_PLACE, "rayjobs", "by-hand")
        await until(lambda: k.find("rayjobs", "by-hand") is None)


async def test_a_pod_is_its_host_and_a_deleted_job_is_stopped(short_path, tmp_path):
    async with (
        FakeKubernetes(crds=crds_folder()) as k,
        RealController(k, short_path, arrivals=Arrivals(heal_s=1.0)) as controller,
        asyncio.timeout(_WITHIN_S),
    ):
        job = ray_job(*stage(tmp_path, wait_for=str(tmp_path / "never")))
        k.put("rayjobs", {"metadata": job["metadata"], "spec": job["spec"]})
        await until(lambda: (k.find("rayjobs", "by-hand").get("status") or {}).get("jobStatus") == "RUNNING")
        workers = worker_pods(k)
        [found] = simulated.living(short_path)
        lost = found.record.slices[0].hosts[0].raylet
        k.remove("pods", next(iter(workers)))
        await until(lambda: not psutil.pid_exists(lost) or psutil.Process(lost).status() == psutil.STATUS_ZOMBIE)
        await until(lambda: not workers.keys() & worker_pods(k).keys())  # the replica goes as a whole
        await until(lambda: set(worker_pods(k).values()) == {"Running"})  # the slice has healed
        assert k.find("rayjobs", "by-hand")["status"]["jobDeploymentStatus"] == "Running"
        k.remove("rayjobs", "by-hand")
        await until(lambda: not k.items("rayclusters"))
        assert (tmp_path / "outbox" / "by-hand.stopped.json").exists()
        await controller.settled()
        assert not simulated.living(short_path)


async def test_a_service_gets_ready_and_answers_through_the_proxy(short_path, tmp_path):
    files = {"greeting.py": GREETING}
    config = {"http_options": {"host": "0.0.0.0", "port": 8000}, "proxy_location": "HeadOnly"}
    application = {"name": "app", "route_prefix": "/app", "import_path": "greeting:app"}
    application["runtime_env"] = {"working_dir": stage_files(files, tmp_path)}
    spec = ray_job("file:///c.zip", "x")["spec"]["rayClusterSpec"]
    spec["workerGroupSpecs"][0] |= {"numOfHosts": 1}
    pod = spec["workerGroupSpecs"][0]["template"]["spec"]
    pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] = "2x2"
    config = json.dumps({**config, "applications": [application]})
    async with FakeKubernetes(crds=crds_folder()) as k, RealController(k, short_path), asyncio.timeout(_WITHIN_S):
        k.put("rayservices", {"metadata": {"name": "s"}, "spec": {"rayClusterConfig": spec, "serveConfigV2": config}})
        await until(lambda: (k.find("rayservices", "s").get("status") or {}).get("numServeEndpoints") == 1)
        status = k.find("rayservices", "s")["status"]
        assert status["activeServiceStatus"]["applicationStatuses"]["app"]["status"] == "RUNNING"
        await until(lambda: k.proxy.backends.get(("default", "s-serve-svc", "8000")))
        url = f"{k.url}/api/v1/namespaces/default/services/s-serve-svc:8000/proxy/app"
        headers = {"Authorization": f"Bearer {k.token}"}
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as reply:
            assert await reply.text() == "hello"


def worker_pods(k):
    return {
        pod["metadata"]["name"]: pod["status"]["phase"]
        for pod in k.items("pods")
        if pod["metadata"]["labels"]["ray.io/node-type"] == "worker"
    }


async def check_cluster(k, name):
    cluster = k.find("rayclusters", name)
    assert cluster["metadata"]["labels"]["ours"] == "yes"
    assert cluster["metadata"]["annotations"] == {"note": "kept"}
    assert cluster["metadata"]["ownerReferences"][0]["name"] == "by-hand"
    assert cluster["status"]["state"] == "ready"
    assert (cluster["status"]["readyWorkerReplicas"], cluster["status"]["desiredTPU"]) == (2, "8")
    labels = [pod["metadata"]["labels"] for pod in k.items("pods")]
    assert all(each["ray.io/cluster"] == name for each in labels)
    workers = [each for each in labels if each["ray.io/node-type"] == "worker"]
    assert {(each["ray.io/group"], each["ray.io/replica-host-index"], each["ours"]) for each in workers} == {
        ("tpu", "0", "yes"),
        ("tpu", "1", "yes"),
    }


async def log_through_the_proxy(k, name):
    token = base64.b64decode(k.find("secrets", name)["data"]["auth_token"]).decode()
    base = f"{k.url}/api/v1/namespaces/default/services/{name}-head-svc:8265/proxy"
    headers = {"Authorization": f"Bearer {k.token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.get(f"{base}/api/jobs/by-hand-job/logs") as reply:
            assert reply.status == 401  # Ray's token is asked for, and the server's own is not passed on
        ours = {"X-Ray-Authorization": f"Bearer {token}"}
        async with session.get(f"{base}/api/jobs/by-hand-job", headers=ours) as reply:
            assert (await reply.json())["metadata"]["owner"] == "me"
        async with session.get(f"{base}/api/jobs/by-hand-job/logs", headers=ours) as reply:
            return (await reply.json())["logs"]


async def test_a_deleted_cluster_takes_its_slices_with_it_and_what_is_left_ends_with_the_controller(short_path):
    async with FakeKubernetes(crds=crds_folder()) as k:
        spec = ray_job("file:///c.zip", "x")["spec"]["rayClusterSpec"]
        async with RealController(k, short_path) as controller, asyncio.timeout(_WITHIN_S):
            for name in ("goes", "stays"):
                k.put("rayclusters", {"metadata": {"name": name}, "spec": spec})
            await until(lambda: len(simulated.living(short_path)) == 2)
            both = simulated.living(short_path)
            k.remove("rayclusters", "goes")
            await controller.settled()
            [left] = simulated.living(short_path)
        assert not simulated.living(short_path)
        assert [processes_of(each) for each in (*both, left)] == [[], [], []]
