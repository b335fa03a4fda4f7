"""The fake server writes as kube-apiserver 1.36 was seen to."""

from __future__ import annotations

import pytest

from tests.unit.doubles.asking import MERGE, PLACE, Ray, pod_template, ray_cluster, worker_group

_JOBS = ("ray.io", "v1", "default", "rayjobs")


def ray_job(**spec):
    spec = {"entrypoint": "python x.py", "rayClusterSpec": ray_cluster()["spec"], **spec}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "j"}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"headGroupSpec": None}, "spec.headGroupSpec"),
        ({"headGroupSpec": {"rayStartParams": {}}}, "spec.headGroupSpec.template"),
        ({"rayVersion": 2.6}, "spec.rayVersion"),
        ({"suspend": "yes"}, "spec.suspend"),
        ({"authOptions": {"mode": "none"}}, "spec.authOptions.mode"),
        ({"managedBy": "me"}, "spec.managedBy"),
        ({"workerGroupSpecs": [worker_group(numOfHosts="4")]}, "spec.workerGroupSpecs[0].numOfHosts"),
        ({"workerGroupSpecs": [worker_group(replicas=True)]}, "spec.workerGroupSpecs[0].replicas"),
        (
            {"workerGroupSpecs": [worker_group(rayStartParams={"num-cpus": 4})]},
            "spec.workerGroupSpecs[0].rayStartParams.num-cpus",
        ),
        (
            {"workerGroupSpecs": [worker_group(template={"spec": {"containers": [{"image": "i"}]}})]},
            "spec.workerGroupSpecs[0].template.spec.containers[0].name",
        ),
        (
            {"workerGroupSpecs": [worker_group(template=pod_template(resources={"limits": {"cpu": "lots"}}))]},
            "spec.workerGroupSpecs[0].template.spec.containers[0].resources.limits.cpu",
        ),
        (
            {"workerGroupSpecs": [worker_group(template=pod_template(env=[{"name": "A"}, {"name": "A"}]))]},
            "spec.workerGroupSpecs[0].template.spec.containers[0].env[1]",
        ),
    ],
)
async def test_a_schema_error_is_422_and_names_the_field(ray, spec, field):
    body = ray_cluster(**spec)
    body["spec"] = {name: value for name, value in body["spec"].items() if value is not None}
    refusal = await ray.refused(ray.create(body))
    assert refusal.code == 422
    assert refusal.fields == {field}
    assert field in refusal.body["message"]
    assert (refusal.body["kind"], refusal.body["reason"]) == ("Status", "Invalid")
    assert refusal.body["details"]["kind"] == "RayCluster"


@pytest.mark.parametrize(
    ("strategy", "fits"),
    [
        ({}, False),
        ({"onSuccess": {"policy": "DeleteCluster"}}, False),
        ({"onSuccess": {"policy": "DeleteCluster"}, "onFailure": {"policy": "DeleteNone"}}, True),
        ({"deletionRules": [{"policy": "DeleteSelf", "condition": {"jobStatus": "FAILED"}}]}, True),
        ({"deletionRules": [{"policy": "DeleteSelf", "condition": {"ttlSeconds": 3}}]}, False),
        (
            {
                "onSuccess": {"policy": "DeleteCluster"},
                "onFailure": {"policy": "DeleteNone"},
                "deletionRules": [{"policy": "DeleteSelf", "condition": {"jobStatus": "FAILED"}}],
            },
            False,
        ),
    ],
)
async def test_rules_of_the_deletion_strategy(ray, strategy, fits):
    made = ray.create(ray_job(deletionStrategy=strategy), place=_JOBS)
    if fits:
        await made
    else:
        refusal = await ray.refused(made)
        assert refusal.code == 422
        assert all(field.startswith("spec.deletionStrategy") for field in refusal.fields)


async def test_managed_by_may_not_change(ray):
    await ray.create(ray_cluster(managedBy="ray.io/kuberay-operator"))
    refusal = await ray.refused(ray.patch("a", {"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}))
    assert (refusal.code, refusal.fields) == (422, {"spec.managedBy"})


async def test_what_the_schema_does_not_say_is_accepted(ray):
    await ray.create(ray_job(submissionMode="Nope"), place=_JOBS)
    await ray.create(ray_cluster("n" * 70))


async def test_an_unknown_field_is_pruned_with_a_warning_or_refused_where_strict(ray):
    body = ray_cluster(workerGroupSpecs=[worker_group(replica=3)])
    response = await ray.create(body, _preload_content=False)
    assert response.status == 201
    assert response.headers["Warning"] == '299 - "unknown field \\"spec.workerGroupSpecs[0].replica\\""'
    stored = await ray.get("a")
    assert "replica" not in stored["spec"]["workerGroupSpecs"][0]
    refusal = await ray.refused(ray.create(ray_cluster("b", nope=1), field_validation="Strict"))
    assert refusal.code == 400
    assert 'strict decoding error: unknown field "spec.nope"' in refusal.body["message"]


async def test_defaults_are_filled_in(ray):
    made = await ray.create(ray_cluster(workerGroupSpecs=[worker_group()]))
    group = made["spec"]["workerGroupSpecs"][0]
    assert (group["numOfHosts"], group["replicas"]) == (1, 0)


@pytest.mark.parametrize("value", ["manual__2026-11-30T00:00:00+00:00", "a+b", "v" * 64, 3])
async def test_a_label_must_fit(ray, value):
    body = ray_cluster()
    body["metadata"]["labels"] = {"run": value}
    refusal = await ray.refused(ray.create(body))
    assert (refusal.code, refusal.fields) == (422, {"metadata.labels"})


async def test_large_objects(ray):
    body = ray_cluster()
    body["spec"]["rayVersion"] = "x" * 1_600_000
    refusal = await ray.refused(ray.create(body))
    assert (refusal.code, refusal.body["message"]) == (500, "etcdserver: request is too large")
    body["spec"]["rayVersion"] = "x" * 3_500_000
    assert (await ray.refused(ray.create(body))).code == 413
    body = ray_cluster()
    body["metadata"]["annotations"] = {"a": "x" * (256 * 1024)}
    refusal = await ray.refused(ray.create(body))
    assert (refusal.code, refusal.fields) == (422, {"metadata.annotations"})


async def test_status_and_generation(ray):
    made = await ray.create({**ray_cluster(), "status": {"state": "ready"}})
    assert "status" not in made
    assert made["metadata"]["generation"] == 1
    patched = await ray.patch("a", {"status": {"state": "ready"}, "metadata": {"labels": {"x": "y"}}})
    assert "status" not in patched
    assert patched["metadata"]["generation"] == 1
    patched = await ray.status("a", {"status": {"state": "ready"}, "spec": {"rayVersion": "2.60.0"}})
    assert patched["status"] == {"state": "ready"}
    assert "rayVersion" not in patched["spec"]
    assert patched["metadata"]["generation"] == 1
    patched = await ray.patch("a", {"spec": {"rayVersion": "2.60.0"}})
    assert patched["metadata"]["generation"] == 2
    assert patched["status"] == {"state": "ready"}
    version = patched["metadata"]["resourceVersion"]
    assert (await ray.patch("a", {"spec": {"rayVersion": "2.60.0"}}))["metadata"]["resourceVersion"] == version


async def test_conflicts(ray):
    made = await ray.create(ray_cluster())
    refusal = await ray.refused(ray.create(ray_cluster()))
    assert (refusal.code, refusal.body["reason"]) == (409, "AlreadyExists")
    old = made["metadata"]["resourceVersion"]
    await ray.patch("a", {"metadata": {"resourceVersion": old, "labels": {"x": "1"}}})
    stale = await ray.refused(ray.patch("a", {"metadata": {"resourceVersion": old, "labels": {"x": "2"}}}))
    assert (stale.code, stale.body["reason"]) == (409, "Conflict")
    assert (await ray.refused(ray.replace("a", made))).body["reason"] == "Conflict"
    uid = await ray.refused(ray.delete("a", body={"preconditions": {"uid": "another"}}))
    assert (uid.code, uid.body["reason"]) == (409, "Conflict")
    assert "UID in precondition: another" in uid.body["message"]
    await ray.delete("a", body={"preconditions": {"uid": made["metadata"]["uid"]}})
    gone = await ray.refused(ray.get("a"))
    assert (gone.code, gone.body["reason"], gone.body["details"]["name"]) == (404, "NotFound", "a")


async def test_replacing_needs_a_version(ray):
    await ray.create(ray_cluster())
    assert (await ray.refused(ray.replace("a", ray_cluster()))).fields == {"metadata.resourceVersion"}
    now = await ray.get("a")
    now["spec"]["rayVersion"] = "2.60.0"
    assert (await ray.replace("a", now))["metadata"]["generation"] == 2


async def test_apply(ray):
    applying = {"_content_type": "application/apply-patch+yaml"}

    def apply(manager, version, **options):
        body = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "a"}}
        body["spec"] = ray_cluster()["spec"] | ({"rayVersion": version} if version else {})
        return ray.patch("a", body, field_manager=manager, **applying, **options)

    await apply("one", "2.59.0")
    refusal = await ray.refused(apply("two", "2.60.0"))
    assert (refusal.code, refusal.body["reason"]) == (409, "Conflict")
    assert 'conflict with "one": .spec.rayVersion' in refusal.body["message"]
    assert (await apply("two", "2.60.0", force=True))["spec"]["rayVersion"] == "2.60.0"
    assert (await apply("one", ""))["spec"]["rayVersion"] == "2.60.0"  # it is no longer one's to remove
    assert "rayVersion" not in (await apply("two", ""))["spec"]
    no_manager = await ray.refused(ray.patch("a", ray_cluster(), **applying))
    assert no_manager.code == 422


async def test_patch_types(ray, client):
    await ray.create(ray_cluster())
    refusal = await ray.refused(ray.patch("a", {"metadata": {"labels": {"x": "y"}}}, _content_type=None))
    assert refusal.code == 400  # kubernetes_asyncio sends JSON patch unless told otherwise
    steps = [{"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}]
    assert (await ray.patch("a", steps, _content_type=None))["metadata"]["labels"] == {"x": "y"}
    steps = [{"op": "test", "path": "/metadata/labels/x", "value": "z"}]
    assert (await ray.refused(ray.patch("a", steps, _content_type=None))).code == 422
    assert (await ray.refused(ray.patch("a", steps))).code == 400  # a list is no merge patch
    strategic = "application/strategic-merge-patch+json"
    assert (await ray.refused(ray.patch("a", {"spec": {}}, _content_type=strategic))).code == 415


def test_the_sync_client(threaded, sync_ray):
    from kubernetes.client import ApiException

    made = sync_ray.create_namespaced_custom_object(*PLACE, ray_cluster())
    assert made["metadata"]["uid"]  # it maps 201 alone
    patched = sync_ray.patch_namespaced_custom_object(*PLACE, "a", {"metadata": {"labels": {"x": "y"}}})
    assert patched["metadata"]["labels"] == {"x": "y"}  # merge patch
    with pytest.raises(ApiException) as refusal:
        sync_ray.patch_namespaced_custom_object(*PLACE, "a", [{"op": "remove", "path": "/metadata/labels"}])
    assert refusal.value.status == 400
    assert threaded.count("patch", status=400) == 1


async def test_dry_run_and_generated_names(ray):
    body = ray_cluster()
    body["metadata"] = {"generateName": "job-"}
    names = {(await ray.create(body))["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("job-") and len(name) == 9 for name in names)
    await ray.create(ray_cluster("dry"), dry_run="All")
    assert (await ray.refused(ray.get("dry"))).code == 404
    name = names.pop()
    await ray.patch(name, {"metadata": {"labels": {"x": "y"}}}, dry_run="All")
    await ray.delete(name, dry_run="All")
    assert "labels" not in (await ray.get(name))["metadata"]


async def test_where_nothing_is_installed(k, ray):
    missing = await ray.refused(ray.create(ray_cluster(), place=("ray.io", "v1", "nowhere", "rayclusters")))
    assert missing.code == 404
    assert missing.body["message"] == 'namespaces "nowhere" not found'
    assert await ray.list(place=("ray.io", "v1", "nowhere", "rayclusters"))
    k.uninstall("rayclusters")
    unknown = await ray.refused(ray.list())
    assert (unknown.code, unknown.text) == (404, "404 page not found\n")
    assert (await ray.refused(ray.list(place=("ray.io", "v2", "default", "rayjobs")))).code == 404


async def test_without_schemas(crds):
    from tests.doubles.kubernetes.access import TestAccess
    from tests.doubles.kubernetes.server import FakeKubernetes

    async with FakeKubernetes() as bare:
        assert bare.schemaless
        found = await TestAccess(bare.url, bare.token).client()
        made = await Ray(found).create(ray_cluster(anything=1))
        assert made["spec"]["anything"] == 1
        await found.close()


async def test_kueue_workloads_and_both_versions_of_a_kind(k, ray):
    k.put("workloads", {"metadata": {"name": "w"}, "spec": {"anything": 1}, "status": {"conditions": []}})
    for version in ("v1beta1", "v1beta2"):
        found = await ray.get("w", place=("kueue.x-k8s.io", version, "default", "workloads"))
        assert found["apiVersion"] == f"kueue.x-k8s.io/{version}"
        assert found["status"] == {"conditions": []}


async def test_a_secret_and_a_service_by_hand(k, client):
    from kubernetes_asyncio.client import ApiException, CoreV1Api, V1ObjectMeta, V1Secret

    core = CoreV1Api(client)
    secret = V1Secret(metadata=V1ObjectMeta(name="s"), string_data={"auth_token": "abc"})
    await core.create_namespaced_secret("default", secret)
    assert (await core.read_namespaced_secret("s", "default")).data == {"auth_token": "YWJj"}
    patched = await core.patch_namespaced_secret("s", "default", {"data": {"b": "YQ=="}}, _content_type=MERGE)
    assert set(patched.data) == {"auth_token", "b"}
    with pytest.raises(ApiException) as refusal:
        await core.create_namespaced_pod("default", {"metadata": {"name": "p"}, "apiVersion": "v1", "kind": "Pod"})
    assert refusal.value.status == 422
