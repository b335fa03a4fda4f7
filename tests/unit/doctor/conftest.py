"""A namespace where nothing is missing, on a fake API server; each test takes something away."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_raytpu.backends.kuberay.api import KubeApi, Pace
from airflow_raytpu.backends.kuberay.reach import Reach
from airflow_raytpu.doctor import cluster
from airflow_raytpu.doctor.findings import Found
from airflow_raytpu.doctor.needs import LOOKED_AT, NEEDED, Need
from airflow_raytpu.doctor.visit import Visit
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.placement.topology import TpuSlice
from tests.doubles.kubernetes.access import TestAccess
from tests.doubles.kubernetes.server import FakeKubernetes

ROOT = Path(__file__).parents[3]
CRDS = Path(os.environ.get("RAYTPU_KUBERAY_CRDS") or ROOT.parent / "shared" / "kuberay-crds" / "v1.7.0")
SLICE = TpuSlice("v6e", "4x4")
IMAGE = "example.com/ray-tpu:1"

WEBHOOK_DEFINITION = {
    "metadata": {"name": "mutatingwebhookconfigurations.admissionregistration.k8s.io"},
    "spec": {
        "group": "admissionregistration.k8s.io",
        "scope": "Cluster",
        "names": {"kind": "MutatingWebhookConfiguration", "plural": "mutatingwebhookconfigurations"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {}}}],
    },
}


def node(name: str, pool: str = "tpu-a", chips: int = 4, **more: Any) -> dict[str, Any]:
    """A node of a v6e 4x4."""
    labels = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": more.pop("topology", "4x4"),
        "cloud.google.com/gke-nodepool": pool,
        **more.pop("labels", {}),
    }
    ready = "True" if more.pop("ready", True) else "False"
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": more,
        "status": {
            "allocatable": {"google.com/tpu": str(chips)},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def rules(*needs: Need) -> list[dict[str, Any]]:
    return [{"apiGroups": [need.resource.group], "resources": [_plain(need)], "verbs": [need.verb]} for need in needs]


def _plain(need: Need) -> str:
    return f"{need.resource.plural}/{need.subresource}" if need.subresource else need.resource.plural


@pytest.fixture
async def kubernetes():
    """KubeRay 1.7, a TPU webhook, the namespace ml with a service account, Secrets and a queue, and one v6e 4x4."""
    if not CRDS.is_dir():
        pytest.skip(f"no KubeRay CRDs at {CRDS}; set RAYTPU_KUBERAY_CRDS")
    async with FakeKubernetes(crds=CRDS) as server:
        server.install(WEBHOOK_DEFINITION)
        server.put("namespaces", {"metadata": {"name": "ml"}})
        identity = {"iam.gke.io/gcp-service-account": "ray-tpu@p.iam.gserviceaccount.com"}
        server.put("serviceaccounts", {"metadata": {"name": "ray-tpu", "annotations": identity}}, "ml")
        server.put("secrets", {"metadata": {"name": "hf"}, "data": {"token": "eA=="}}, "ml")
        pull = {"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "e30="}}
        server.put("secrets", {"metadata": {"name": "registry"}, **pull}, "ml")
        server.put("localqueues", {"metadata": {"name": "tpu"}, "spec": {"clusterQueue": "all"}}, "ml")
        hook = {"name": "tpu.ray.io", "clientConfig": {"service": {"name": "kuberay-tpu-webhook"}}}
        server.put("mutatingwebhookconfigurations", {"metadata": {"name": "kuberay-tpu-webhook"}, "webhooks": [hook]})
        for index in range(4):
            server.put("nodes", node(f"tpu-a-{index}"))
        yield server


OPTIONS = {
    "namespace": "ml",
    "image": IMAGE,
    "service_account": "ray-tpu",
    "image_pull_secrets": ["registry"],
    "secret_env": {"HF_TOKEN": "hf/token"},
    "queue": "tpu",
}


@pytest.fixture
def examine(kubernetes):
    """What the doctor finds, as the administrator or with another token."""

    async def run(token: str = "", url: str = "", tpu_slice: TpuSlice | None = SLICE, **options: Any) -> list[Found]:
        wanted = KubeRayOptions.from_dict({**OPTIONS, **options})
        access = TestAccess(url or kubernetes.url, token or kubernetes.token)
        pace = Pace(once=2.0, whole=0.0, first_pause=0.0)
        api = KubeApi(access, wanted.namespace, pace)
        try:
            return await cluster.looked_at(Visit(api=api, options=wanted, tpu_slice=tpu_slice))
        finally:
            await api.close()

    return run


@pytest.fixture
def account(kubernetes):
    """A token for a service account that has all rights but those *without*, as Role and ClusterRole."""

    def make(*without: str) -> str:
        kept = [need for need in (*NEEDED, *LOOKED_AT) if str(need) not in without]
        token = kubernetes.account("airflow", rules(*(need for need in kept if need.resource.namespaced)), "ml")
        binding = {
            "metadata": {"name": "airflow"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "airflow"},
            "subjects": [{"kind": "ServiceAccount", "name": "airflow", "namespace": "ml"}],
        }
        kubernetes.put(
            "clusterroles",
            {"metadata": {"name": "airflow"}, "rules": rules(*(need for need in kept if not need.resource.namespaced))},
        )
        kubernetes.put("clusterrolebindings", binding)
        return token

    return make


@pytest.fixture
def place(monkeypatch, tmp_path):
    """Makes the hook answer with a place."""
    from airflow_raytpu.hooks.raytpu import RayTpuHook

    def make(**fields: Any) -> SimpleNamespace:
        defaults = {"backend": "simulated", "storage": f"file://{tmp_path}/storage", "root": "", "reach": Reach()}
        made = SimpleNamespace(**{**defaults, **fields})
        monkeypatch.setattr(RayTpuHook, "place", lambda self: made)
        return made

    return make
