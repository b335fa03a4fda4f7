"""The files that an administrator applies: they parse, they grant what the code asks for, and nothing more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_raytpu.backends.kuberay import nodes
from airflow_raytpu.backends.kuberay.reach import DASHBOARD_PORT, SERVE_PORT
from airflow_raytpu.doctor.needs import LOOKED_AT, NEEDED
from airflow_raytpu.placement import catalogue
from tests.doubles.kubernetes.server import FakeKubernetes

FOLDER = Path(__file__).parents[3] / "docs" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
RAY_PODS = {"ray.io/is-ray-node": "yes"}


def load(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in load(name) if each["kind"] == kind]


def granted(role: dict[str, Any]) -> list[tuple[str, str, str]]:
    """``(verb, group, resource)``, repeated where it is granted twice."""
    return [
        (verb, group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def wanted(needs) -> list[tuple[str, str, str]]:
    found = []
    for need in needs:
        resource = need.resource.plural + (f"/{need.subresource}" if need.subresource else "")
        found.append((need.verb, need.resource.group, resource))
    return found


def test_all_of_them_are_known():
    assert [path.name for path in FILES] == [
        "doctor-role.yaml",
        "kueue.yaml",
        "networkpolicy.yaml",
        "podmonitor.yaml",
        "role.yaml",
        "serviceaccount.yaml",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_is_made_of_whole_objects_with_names_of_their_own(path):
    objects = load(path.name)
    assert all({"apiVersion", "kind", "metadata"} <= set(each) for each in objects)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) for _, name in names)
    text = path.read_text()
    assert text.startswith("# ")
    assert f"-f {path.name}" in text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_secret_and_no_wildcard_is_in_them(path):
    assert not [each for each in load(path.name) if each["kind"] == "Secret"]
    for role in (each for each in load(path.name) if each["kind"].endswith("Role")):
        assert "*" not in {part for grant in granted(role) for part in grant}


@pytest.mark.parametrize(
    ("name", "kind", "needs"), [("role.yaml", "Role", NEEDED), ("doctor-role.yaml", "ClusterRole", LOOKED_AT)]
)
def test_a_role_grants_what_is_asked_for_and_nothing_more(name, kind, needs):
    (role,) = of_kind(name, kind)
    assert sorted(granted(role)) == sorted(wanted(needs))


@pytest.mark.parametrize(
    ("name", "kind"), [("role.yaml", "Role"), ("doctor-role.yaml", "ClusterRole"), ("serviceaccount.yaml", "Role")]
)
def test_a_binding_binds_its_role(name, kind):
    roles, bindings = of_kind(name, kind), of_kind(name, f"{kind}Binding")
    group = {"apiGroup": "rbac.authorization.k8s.io"}
    assert [each["roleRef"] for each in bindings] == [
        {**group, "kind": kind, "name": role["metadata"]["name"]} for role in roles
    ]
    assert all([subject["kind"] for subject in each["subjects"]] == ["ServiceAccount"] for each in bindings)
    # The API server refuses an account without one, whatever namespace kubectl was given.
    assert all(subject.get("namespace") for each in bindings for subject in each["subjects"])


async def test_a_real_binding_of_the_role_lets_just_that_happen():
    """The role on a fake API server: what it grants works, and a neighbouring verb does not."""
    import aiohttp

    async with FakeKubernetes() as server:
        (role,) = of_kind("role.yaml", "Role")
        token = server.account("airflow", role["rules"])
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            statuses = {}
            for path in ("pods", "secrets", "secrets/absent", "configmaps"):
                async with session.get(f"{server.url}/api/v1/namespaces/default/{path}") as answer:
                    statuses[path] = answer.status
        assert statuses == {"pods": 200, "secrets": 403, "secrets/absent": 404, "configmaps": 403}


def test_the_head_may_end_its_cluster_and_its_autoscaler_may_scale():
    keeper, autoscaler = of_kind("serviceaccount.yaml", "Role")
    (account,) = of_kind("serviceaccount.yaml", "ServiceAccount")
    assert set(granted(keeper)) == {(verb, "ray.io", "rayclusters") for verb in ("get", "delete")}
    # What KubeRay 1.7 itself grants to an autoscaler.
    assert set(granted(autoscaler)) == {
        *((verb, "ray.io", "rayclusters") for verb in ("get", "patch")),
        *((verb, "", "pods") for verb in ("get", "list", "watch", "patch")),
    }
    assert "iam.gke.io/gcp-service-account" in account["metadata"]["annotations"]


def test_only_those_who_must_reach_ray():
    (policy,) = load("networkpolicy.yaml")
    assert policy["spec"]["podSelector"]["matchLabels"] == RAY_PODS
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    within, airflow, metrics = policy["spec"]["ingress"]
    assert within == {"from": [{"podSelector": {"matchLabels": RAY_PODS}}]}
    assert {port["port"] for port in airflow["ports"]} == {DASHBOARD_PORT, SERVE_PORT}
    assert {port["port"] for port in metrics["ports"]} == {8080}
    # A source with no selector at all, or with two entries in place of one, would let in everybody.
    for rule in (airflow, metrics):
        assert all(source.get("namespaceSelector", {}).get("matchLabels") for source in rule["from"])
    (system,) = [source for source in airflow["from"] if "podSelector" in source]
    assert system["podSelector"]["matchLabels"] == {"k8s-app": "konnectivity-agent"}


def test_metrics_are_taken_from_ray_pods():
    (monitor,) = load("podmonitor.yaml")
    assert monitor["spec"]["selector"]["matchLabels"] == RAY_PODS
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"


def test_queues_refer_to_what_is_there():
    named = {(each["kind"], each["metadata"]["name"]): each for each in load("kueue.yaml")}
    queue = named["ClusterQueue", "tpu"]["spec"]
    flavors = [flavor for group in queue["resourceGroups"] for flavor in group["flavors"]]
    assert {("ResourceFlavor", flavor["name"]) for flavor in flavors} <= set(named)
    for group in queue["resourceGroups"]:
        for flavor in group["flavors"]:
            assert [each["name"] for each in flavor["resources"]] == group["coveredResources"]
    (check,) = queue["admissionChecksStrategy"]["admissionChecks"]
    assert {flavor["name"] for flavor in flavors} >= set(check["onFlavors"])
    parameters = named["AdmissionCheck", check["name"]]["spec"]["parameters"]
    assert (parameters["kind"], parameters["name"]) in named
    assert named["LocalQueue", "tpu"]["spec"]["clusterQueue"] == "tpu"


def test_flavors_are_shapes_that_exist():
    found = [each["spec"]["nodeLabels"] for each in of_kind("kueue.yaml", "ResourceFlavor") if "spec" in each]
    assert len(found) == 2
    shapes = [row.node_selector for row in catalogue.shapes()]
    assert all(labels in shapes for labels in found)
    assert set(found[0]) == {nodes.ACCELERATOR, nodes.TOPOLOGY}
    (tolerations,) = [
        each["spec"]["tolerations"]
        for each in of_kind("kueue.yaml", "ResourceFlavor")
        if "tolerations" in each.get("spec", {})
    ]
    assert [each["key"] for each in tolerations] == [nodes.QUEUED]
