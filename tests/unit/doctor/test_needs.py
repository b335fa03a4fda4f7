"""The rights that are written down are those that the backend uses: it lives by ``role.yaml`` alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

from airflow_raytpu.backends.kuberay import backend as backend_module
from airflow_raytpu.backends.kuberay.backend import KubeRayBackend
from airflow_raytpu.backends.kuberay.reach import Reach, Way
from airflow_raytpu.doctor.needs import KUEUE, NEEDED, PROXY
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest
from tests.doubles.kubernetes.access import TestAccess
from tests.unit.doctor.conftest import ROOT

WATCHED = {"rayclusters", "rayjobs", "rayservices", "pods", "events", "workloads"}


def test_each_right_is_listed_once():
    assert len(set(NEEDED)) == len(NEEDED)
    assert set(PROXY) < set(NEEDED)
    assert set(KUEUE) < set(NEEDED)


def test_rights_as_rbac_words_them():
    assert {"watch rayjobs.ray.io", "create services/proxy", "get secrets"} <= set(map(str, NEEDED))


@pytest.mark.parametrize("kind", [Kind.CLUSTER, Kind.TRAIN])
async def test_the_backend_asks_for_nothing_else(kubernetes, tmp_path, kind, monkeypatch):
    monkeypatch.setattr(backend_module, "_QUIET_S", 0.01)
    (role, _) = yaml.safe_load_all((ROOT / "docs" / "kubernetes" / "role.yaml").read_text())
    token = kubernetes.account("airflow", role["rules"], "ml")
    request = RayRequest(
        identity=Identity(deployment="tests", dag_id="digits", task_id="task", run_id="run"),
        kind=kind,
        slice="v6e:4x4",
        storage=tmp_path.as_uri(),
        limits=Deadlines().since(time.time()),
        code=None if kind is Kind.CLUSTER else "file:///code.zip",
        options={"image": "ray:1", "namespace": "ml", "queue": "tpu"},
    )
    backend = KubeRayBackend(TestAccess(kubernetes.url, token), "ml", "tests", Reach(way=Way.PROXY))
    try:
        assert await backend.ensure(request)
        while len({each.kind.plural for each in kubernetes.watches}) < len(WATCHED):
            await backend.wait(request, 0.01)
            await backend.observe(request)
        assert {each.kind.plural for each in kubernetes.watches} == WATCHED
        await backend.slices()
        await backend.stop(request)
        await backend.delete(request)
    finally:
        await backend.close()
    calls: list[Any] = [call for call in kubernetes.trouble.calls if call.token == token]
    assert {"create", "get", "list", "watch", "delete"} <= {call.verb for call in calls}
    assert [call for call in calls if call.status == 403] == []
    rights = {(need.verb, need.what.partition(".")[0]) for need in NEEDED}
    # Which kinds there are, every user may ask (system:discovery).
    asked = {(call.verb, call.resource) for call in calls if not call.resource.startswith("/apis/")}
    assert asked <= rights
