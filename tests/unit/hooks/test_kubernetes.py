"""Kubernetes credentials by the provider's own hook, used against an API server."""

from __future__ import annotations

import json

import pytest
import yaml

from airflow_raytpu.backends.kuberay.api import PODS, KubeApi
from airflow_raytpu.hooks.kubernetes import KubernetesAccess
from airflow_raytpu.model.errors import NotInstalledError
from tests.doubles.kubernetes.server import FakeKubernetes


@pytest.fixture
async def k():
    async with FakeKubernetes() as server:
        yield server


def kubeconfig(k, token):
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": k.url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


@pytest.mark.parametrize("kind", ["file", "text"])
async def test_a_kubeconfig_of_a_connection_opens_the_server(k, kind, tmp_path, monkeypatch):
    config = yaml.safe_dump(kubeconfig(k, k.token))
    path = tmp_path / "config"
    path.write_text(config)
    extra = {"kube_config_path": str(path)} if kind == "file" else {"kube_config": json.dumps(kubeconfig(k, k.token))}
    monkeypatch.setenv("AIRFLOW_CONN_GKE", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    k.put("pods", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    api = KubeApi(KubernetesAccess("gke"), "default")
    found = await api.get(PODS, "p")
    await api.close()
    assert found is not None
    assert found["metadata"]["name"] == "p"


async def test_a_connection_that_is_not_there_is_named(monkeypatch):
    from airflow.sdk.execution_time import supervisor
    from airflow.secrets.environment_variables import EnvironmentVariablesBackend

    monkeypatch.setattr(supervisor, "ensure_secrets_backend_loaded", lambda: [EnvironmentVariablesBackend()])
    api = KubeApi(KubernetesAccess("nowhere"), "default")
    with pytest.raises(NotInstalledError, match="no Kubernetes connection 'nowhere'"):
        await api.get(PODS, "p")
    await api.close()


async def test_a_token_that_was_replaced_is_read_again(k, tmp_path, monkeypatch):
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(kubeconfig(k, "long ago")))
    extra = {"kube_config_path": str(path)}
    monkeypatch.setenv("AIRFLOW_CONN_GKE", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    access = KubernetesAccess("gke")
    loads = []

    class Rotating:
        key = "rotating"

        async def client(self):
            loads.append(1)
            if len(loads) > 1:
                path.write_text(yaml.safe_dump(kubeconfig(k, k.token)))
            return await access.client()

    api = KubeApi(Rotating(), "default")
    assert await api.get(PODS, "p") is None
    await api.close()
    assert len(loads) == 2
