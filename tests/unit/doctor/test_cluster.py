"""The doctor at a fake API server: nothing is missing, then one thing after the other."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from airflow_raytpu.backends.kuberay.resources import RAYCLUSTERS, RAYJOBS, RAYSERVICES
from airflow_raytpu.doctor.findings import Found, Level
from airflow_raytpu.doctor.kuberay import FIELDS, NEWEST
from airflow_raytpu.doctor.needs import LOOKED_AT, NEEDED
from airflow_raytpu.placement.topology import TpuSlice
from tests.doubles.kubernetes.kinds import Kind, crd_objects
from tests.unit.doctor.conftest import CRDS, SLICE, node


def of(found: list[Found], check: str) -> Found:
    (one,) = [each for each in found if each.check == check]
    return one


def definition_of(plural: str) -> dict[str, Any]:
    return next(each for each in crd_objects(CRDS) if each["spec"]["names"]["plural"] == plural)


def troubles(found: list[Found]) -> dict[str, Level]:
    return {each.check: each.level for each in found if each.level is not Level.OK}


async def test_where_nothing_is_missing(examine):
    found = await examine()
    assert troubles(found) == {}
    assert {each.check: each.says for each in found} == {
        "API server": "v1.36.0",
        "namespace": "ml",
        "KubeRay": "rayclusters, rayjobs, rayservices of version v1",
        "CRDs": "of KubeRay 1.7 or newer",
        "TPU webhook": "kuberay-tpu-webhook",
        "RBAC": f"all {len(NEEDED)} rights that are needed in ml",
        "image": "example.com/ray-tpu:1",
        "account": "ray-tpu, which is ray-tpu@p.iam.gserviceaccount.com in Google Cloud",
        "pull secret": "registry",
        "secret": "hf/token for HF_TOKEN",
        "queue": "tpu, of ClusterQueue all",
        "nodes": "1 whole slice of v6e 4x4 in 1 node pool, 4 nodes ready",
        "token auth": "on in every cluster of this package",
    }


async def test_all_is_well_for_just_the_rights_that_are_needed(examine, account):
    assert troubles(await examine(token=account())) == {}


async def test_looking_changes_nothing_and_asks_for_no_more(examine, account, kubernetes):
    await examine(token=account())
    asked = {(call.verb, call.resource) for call in kubernetes.trouble.calls}
    assert asked <= {(need.verb, need.resource.plural) for need in (*NEEDED, *LOOKED_AT)} | {
        ("create", "selfsubjectaccessreviews"),
        *(("get", path) for path in ("/version", "/apis/ray.io", "/apis/ray.io/v1", "/apis/ray.io/v1alpha1")),
        *(("get", f"/apis/kueue.x-k8s.io{version}") for version in ("", "/v1beta1", "/v1beta2")),
    }


async def test_no_api_server_at_all(examine, kubernetes):
    async with kubernetes.outage():
        (found,) = await examine()
    assert (found.check, found.level) == ("API server", Level.ERROR)
    assert "gave no answer" in found.says
    assert found.lever


async def test_a_token_that_nobody_knows(examine):
    found = await examine(token="wrong")
    assert [(each.check, each.level) for each in found] == [("API server", Level.ERROR)]


async def test_no_kuberay(examine, kubernetes):
    for kind in ("rayclusters", "rayjobs", "rayservices", "raycronjobs"):
        kubernetes.uninstall(kind)
    found = of(await examine(), "KubeRay")
    assert (found.level, found.says) == (
        Level.ERROR,
        "The API server has no kinds of ray.io: KubeRay is not installed.",
    )
    assert [command.split()[0] for command in found.apply] == ["helm", "gcloud"]


async def test_one_kind_missing(examine, kubernetes):
    kubernetes.uninstall("rayjobs")
    found = await examine()
    assert of(found, "KubeRay").says == "No version v1 of rayjobs.ray.io is served."
    assert troubles(found) == {"KubeRay": Level.ERROR}


@pytest.mark.parametrize(
    ("plural", "field", "level", "says"),
    [
        (
            "rayjobs",
            "preRunningDeadlineSeconds",
            Level.ERROR,
            "1 field missing: rayjobs spec.preRunningDeadlineSeconds.",
        ),
        ("rayservices", "suspend", Level.WARNING, "older than 1.7"),
    ],
)
async def test_an_older_kuberay(examine, kubernetes, plural, field, level, says):
    definition = copy.deepcopy(definition_of(plural))
    for version in definition["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].pop(field, None)
    kubernetes.uninstall(plural)
    kubernetes.install(definition)
    found = of(await examine(), "CRDs")
    assert found.level is level
    assert says in found.says


async def test_the_fields_that_are_looked_for_are_kuberays():
    if not CRDS.is_dir():
        pytest.skip(f"no KubeRay CRDs at {CRDS}; set RAYTPU_KUBERAY_CRDS")
    assert set(FIELDS) == {RAYCLUSTERS, RAYJOBS, RAYSERVICES}
    for kind in FIELDS:
        versions = definition_of(kind.plural)["spec"]["versions"]
        (schema,) = [each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v1"]
        for path in (*FIELDS[kind], *([NEWEST[kind]] if kind in NEWEST else [])):
            inner = schema["properties"]["spec"]
            for name in path.split("."):
                inner = inner["properties"][name]


async def test_no_namespace(examine):
    found = of(await examine(namespace="absent"), "namespace")
    assert (found.level, found.says) == (Level.ERROR, "There is no namespace absent.")
    assert found.apply == ("kubectl create namespace absent",)


async def test_missing_rights_are_named(examine, account):
    token = account("watch rayjobs.ray.io", "delete rayjobs.ray.io", "get secrets", "delete services/proxy")
    found = of(await examine(token=token), "RBAC")
    assert found.level is Level.ERROR
    assert found.says == (
        f"4 of {len(NEEDED)} rights are missing in ml: rayjobs.ray.io watch/delete; secrets get; services/proxy delete."
    )
    assert found.apply == ("kubectl apply --namespace ml -f docs/kubernetes/role.yaml",)


async def test_rights_that_this_connection_has_no_use_for(examine, account):
    token = account("get workloads.kueue.x-k8s.io")
    assert of(await examine(token=token), "RBAC").level is Level.ERROR
    assert of(await examine(token=token, queue=""), "RBAC").level is Level.OK


async def test_what_only_the_doctor_looks_at_is_no_error(examine, account):
    found = await examine(token=account(*map(str, LOOKED_AT)))
    assert troubles(found) == dict.fromkeys(
        ("namespace", "CRDs", "TPU webhook", "account", "queue", "nodes"), Level.WARNING
    )
    assert all("could not be seen" in each.says for each in found if each.level is Level.WARNING)


async def test_no_webhook(examine, kubernetes):
    kubernetes.remove("mutatingwebhookconfigurations", "kuberay-tpu-webhook")
    assert of(await examine(), "TPU webhook").level is Level.ERROR


async def test_no_service_account(examine):
    found = of(await examine(service_account="absent"), "account")
    assert (found.level, found.says) == (
        Level.ERROR,
        "There is no service account absent in ml: no pod of it would be made.",
    )


async def test_no_account_is_named(examine):
    found = of(await examine(service_account=""), "account")
    assert (found.level, "pods run as default" in found.says) == (Level.WARNING, True)


async def test_an_account_that_is_nobody_in_google_cloud(examine, kubernetes):
    kubernetes.put("serviceaccounts", {"metadata": {"name": "plain"}}, "ml")
    assert of(await examine(service_account="plain"), "account").level is Level.WARNING


@pytest.mark.parametrize(
    ("options", "check", "says"),
    [
        ({"image": ""}, "image", "The connection names no image."),
        ({"image_pull_secrets": ["absent"]}, "pull secret", "There is no Secret absent in ml."),
        ({"image_pull_secrets": ["hf"]}, "pull secret", "The Secret hf of type"),
        ({"secret_env": {"A": "absent/b"}}, "secret", "There is no Secret absent in ml, which A is taken from."),
        ({"secret_env": {"A": "hf/b"}}, "secret", "The Secret hf has no key b in ml, which A is taken from."),
        ({"queue": "absent"}, "queue", "There is no LocalQueue absent in ml."),
    ],
)
async def test_something_that_is_named_and_not_there(examine, options, check, says):
    found = of(await examine(**options), check)
    assert found.level is Level.ERROR
    assert found.says.startswith(says)
    assert found.apply


async def test_a_queue_that_takes_nothing(examine, kubernetes):
    condition = {"type": "Active", "status": "False", "message": "Can't submit new workloads to clusterQueue"}
    kubernetes.status("localqueues", "tpu", {"conditions": [condition]}, "ml")
    found = of(await examine(), "queue")
    assert (found.level, "Can't submit new workloads" in found.says) == (Level.ERROR, True)


async def test_an_older_kueue(examine, kubernetes):
    kubernetes.uninstall("localqueues")
    older = Kind("kueue.x-k8s.io", ("v1beta1",), "LocalQueue", "localqueues", is_custom=True)
    kubernetes._kinds[older.key] = older
    kubernetes.put("localqueues", {"metadata": {"name": "tpu"}, "spec": {"clusterQueue": "old"}}, "ml")
    assert of(await examine(), "queue").says == "tpu, of ClusterQueue old"


async def test_no_kueue(examine, kubernetes):
    for kind in ("localqueues", "workloads"):
        kubernetes.uninstall(kind)
    found = of(await examine(), "queue")
    assert (found.level, found.says) == (Level.ERROR, "The connection names the queue tpu, but Kueue is not installed.")


async def test_no_node_of_the_shape(examine):
    found = of(await examine(tpu_slice=TpuSlice("v6e", "4x8")), "nodes")
    assert found.level is Level.WARNING
    assert "No node has gke-tpu-accelerator=tpu-v6e-slice, gke-tpu-topology=4x8. There are 4 of v6e 4x4." in found.says
    assert "A pool that is scaled to zero cannot be seen from here" in found.says
    assert "--tpu-topology=4x8" in found.apply[0]
    assert "--num-nodes=8" in found.apply[0]


async def test_nodes_of_other_provisioning_do_not_count(examine):
    found = of(await examine(provisioning="spot"), "nodes")
    assert (found.level, "gke-spot=true" in found.says) == (Level.WARNING, True)


async def test_a_slice_with_a_host_missing(examine, kubernetes):
    kubernetes.remove("nodes", "tpu-a-3")
    kubernetes.put("nodes", node("tpu-b-0", pool="tpu-b"))
    found = of(await examine(), "nodes")
    assert found.level is Level.WARNING
    assert found.says.startswith(
        "0 whole slices of v6e 4x4 of the 1 wanted: tpu-a has 3 of 4 nodes ready, tpu-b has 1 of 4 nodes ready."
    )


@pytest.mark.parametrize("more", [{"ready": False}, {"unschedulable": True}])
async def test_a_node_that_takes_no_pod(examine, kubernetes, more):
    kubernetes.remove("nodes", "tpu-a-3")
    kubernetes.put("nodes", node("tpu-a-3", **more))
    assert of(await examine(), "nodes").level is Level.WARNING


async def test_a_node_without_its_chips(examine, kubernetes):
    kubernetes.remove("nodes", "tpu-a-3")
    kubernetes.put("nodes", node("tpu-a-3", chips=0))
    wrong = next(each for each in await examine() if each.check == "nodes")
    assert wrong.level is Level.ERROR
    assert wrong.says == "1 of 4 nodes of v6e 4x4 does not offer 4 google.com/tpu: tpu-a-3 has 0."


async def test_without_a_shape_it_says_what_is_there(examine, kubernetes):
    assert of(await examine(tpu_slice=None), "nodes").says == "4 of v6e 4x4"
    for index in range(4):
        kubernetes.remove("nodes", f"tpu-a-{index}")
    found = of(await examine(tpu_slice=None), "nodes")
    assert (found.level, found.says.startswith("There is no TPU node.")) == (Level.WARNING, True)


async def test_clusters_without_a_token_are_named(examine, kubernetes):
    template = {"spec": {"containers": [{"name": "ray", "image": "x"}]}}
    spec = {"headGroupSpec": {"rayStartParams": {}, "template": template}}
    kubernetes.put(
        "rayclusters", {"metadata": {"name": "ours"}, "spec": {**spec, "authOptions": {"mode": "token"}}}, "ml"
    )
    kubernetes.put("rayclusters", {"metadata": {"name": "open"}, "spec": {**spec, "authOptions": {}}}, "ml")
    found = of(await examine(), "token auth")
    assert found.level is Level.WARNING
    assert found.says == "1 of 2 Ray clusters in ml without it: whoever reaches them can run code there. open."


async def test_a_check_that_cannot_be_made_does_not_hide_the_others(examine, kubernetes):
    kubernetes.fail("list", "nodes", 500, times=None)
    found = await examine()
    assert troubles(found) == {"nodes": Level.ERROR}
    assert of(found, "token auth").level is Level.OK


@pytest.mark.parametrize(
    ("version", "shape", "provisioning", "level"),
    [
        ("v1.31.1-gke.1846000", "v6e:4x4", "on-demand", Level.OK),
        ("v1.31.1-gke.1845999", "v6e:4x4", "on-demand", Level.WARNING),
        ("v1.30.9-gke.2000000", "v5p:2x2x2", "on-demand", Level.OK),
        ("v1.31.1-gke.1846000", "v6e:4x4", "flex-start", Level.WARNING),
        ("v1.30.0", "v6e:4x4", "on-demand", Level.OK),
    ],
)
async def test_a_gke_too_old_for_what_is_asked(examine, monkeypatch, version, shape, provisioning, level):
    from tests.doubles.kubernetes import discovery

    monkeypatch.setitem(discovery.VERSION, "gitVersion", version)
    found = await examine(tpu_slice=TpuSlice.parse(shape), provisioning=provisioning)
    assert of(found, "API server").level is level


async def test_everything_has_a_lever_and_fits_80_columns(examine, kubernetes):
    for index in range(4):
        kubernetes.remove("nodes", f"tpu-a-{index}")
    options = {"image": "", "queue": "absent", "service_account": "absent", "image_pull_secrets": ["absent"]}
    found = await examine(tpu_slice=SLICE, provisioning="flex-start", **options)
    for each in found:
        assert each.lever or each.level is Level.OK
        assert all(len(line) <= 76 for command in each.apply for line in command.split("\n")), each.apply
