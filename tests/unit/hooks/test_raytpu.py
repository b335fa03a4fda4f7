"""From connections to places."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_raytpu.hooks import raytpu
from airflow_raytpu.hooks.raytpu import Place, RayTpuHook
from airflow_raytpu.model.errors import PathError, RequestError
from airflow_raytpu.model.kuberay import KubeRayOptions, Provisioning
from airflow_raytpu.provider_info import get_provider_info


@pytest.fixture
def connections(monkeypatch):
    """Connections by id, in the environment as Airflow reads them; Airflow's other sources are shut."""

    def define(conn_id, **extra):
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": "raytpu", "extra": extra}))

    from airflow.sdk.execution_time import supervisor
    from airflow.secrets.environment_variables import EnvironmentVariablesBackend

    monkeypatch.setattr(supervisor, "ensure_secrets_backend_loaded", lambda: [EnvironmentVariablesBackend()])
    return define


async def both(conn_id="raytpu_default"):
    here, there = RayTpuHook(conn_id).place(), await RayTpuHook(conn_id).aplace()
    assert here == there
    return here


async def test_with_no_connection_it_is_simulated_slices_and_says_so(connections, tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", f"{tmp_path}/a home")
    assert await both() == Place(storage=f"file://{tmp_path}/a%20home/raytpu", stated=False)


async def test_the_configuration_overrides_the_default_storage(connections, monkeypatch):
    monkeypatch.setenv("AIRFLOW__RAYTPU__STORAGE", "gs://bucket/runs/")
    assert (await both()).storage == "gs://bucket/runs"


async def test_a_connection_says_where(connections):
    connections("raytpu_default", backend="simulated", storage="/data/x", root="/tmp/r")
    assert await both() == Place(storage="file:///data/x", root="/tmp/r")
    assert RayTpuHook().storage == "file:///data/x"


async def test_a_connection_to_kubernetes_says_how_clusters_are_made(connections):
    connections(
        "prod",
        backend="kuberay",
        storage="gs://bucket/runs",
        kubernetes_conn_id="gke",
        namespace="ml",
        image="eu/ray:1",
        # Airflow's form hands over text.
        options='{"queue": "tpu", "head": {"cpu": "2", "memory": "8Gi"}}',
    )
    place = await both("prod")
    assert (place.backend, place.kubernetes_conn_id, place.storage) == ("kuberay", "gke", "gs://bucket/runs")
    options = KubeRayOptions.from_dict(place.options_of({"provisioning": "spot", "queue": "other"}))
    assert (options.namespace, options.image, options.queue) == ("ml", "eu/ray:1", "other")
    assert (options.provisioning, options.head.memory) == (Provisioning.SPOT, "8Gi")
    backend = place.open()
    assert (backend.name, backend.api.namespace) == ("kuberay", "ml")
    await backend.close()


def test_simulated_slices_know_no_kubernetes_options(connections):
    connections("raytpu_default", backend="simulated")
    assert RayTpuHook().place().options_of({"provisioning": "spot"}) == {}


def test_a_task_cannot_name_a_namespace_that_nobody_would_look_in_later(connections):
    connections("raytpu_default", backend="kuberay", namespace="ml", image="ray:1", storage="gs://b/x")
    place = RayTpuHook().place()
    with pytest.raises(RequestError, match=r"namespace other, and its connection ml\.(?s:.)*conn_id"):
        place.options_of({"namespace": "other"})
    assert place.options_of({"namespace": "ml"}) == place.options_of({})


async def test_another_connection_that_does_not_exist_is_an_error(connections):
    with pytest.raises(RequestError, match=r"no connection 'prod'\.\n.*raytpu_default") as caught:
        RayTpuHook("prod").place()
    assert isinstance(caught.value.__cause__, AirflowNotFoundException)
    with pytest.raises(RequestError, match="no connection 'prod'"):
        await RayTpuHook("prod").aplace()


def test_an_extra_that_is_not_json_is_an_error(monkeypatch):
    monkeypatch.setattr(RayTpuHook, "get_connection", lambda self, conn_id: SimpleNamespace(extra="{torn"))
    with pytest.raises(RequestError, match="extra of connection bad is not JSON"):
        RayTpuHook("bad").place()


@pytest.mark.parametrize(
    ("extra", "error", "message"),
    [
        ({"backend": "dataproc"}, RequestError, "names the backend 'dataproc'"),
        ({"backend": "kuberay", "options": "{torn"}, RequestError, "options of connection raytpu_default are not JSON"),
        ({"backend": "kuberay", "options": ["a"]}, RequestError, "are a list, not an object"),
        ({"backend": "kuberay", "options": {"imgae": "x"}}, RequestError, "Did you mean 'image'"),
        ({"backend": "kuberay", "reach": "tunnel"}, RequestError, r"reach 'tunnel'(?s:.)*auto, service, proxy, url"),
        ({"backend": "kuberay", "reach": "url"}, RequestError, "reach is 'url' and url is ''"),
        ({"storage": "s3://x"}, PathError, "'s3://x' is not a storage address"),
    ],
)
async def test_a_connection_that_makes_no_sense_is_an_error(extra, error, message, connections):
    connections("raytpu_default", **extra)
    with pytest.raises(error, match=message):
        await RayTpuHook().aplace()


def test_the_documented_defaults_are_the_ones_in_use():
    options = get_provider_info()["config"]["raytpu"]["options"]
    assert {name: option["default"] for name, option in options.items()} == raytpu.DEFAULTS
    assert {name: raytpu.setting(name) for name in options} == raytpu.DEFAULTS
