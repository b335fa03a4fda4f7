"""What Airflow is told about this package."""

from __future__ import annotations

import importlib.resources
import json
from importlib import import_module

import jsonschema
import pytest

from airflow_raytpu import __version__
from airflow_raytpu.provider_info import get_provider_info


@pytest.fixture(scope="module")
def schema():
    return json.loads((importlib.resources.files("airflow") / "provider_info.schema.json").read_text())


def test_it_follows_airflows_schema(schema):
    jsonschema.validate(get_provider_info(), schema)


def test_it_names_nothing_that_airflow_does_not_know(schema):
    assert set(get_provider_info()) <= {*schema["properties"], "versions"}


def test_everything_it_names_is_there():
    info = get_provider_info()
    for kind in ("operators", "sensors", "hooks", "triggers"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                import_module(module)
    named = [
        *info["extra-links"],
        *(kind["hook-class-name"] for kind in info["connection-types"]),
        *(decorator["class-name"] for decorator in info["task-decorators"]),
    ]
    for path in named:
        module, _, name = path.rpartition(".")
        assert hasattr(import_module(module), name)


def test_it_has_the_versions_that_are_released():
    assert get_provider_info()["versions"][0] == __version__


def test_the_connection_form_has_no_field_for_a_secret():
    (connection,) = get_provider_info()["connection-types"]
    # Kubernetes credentials are another connection's, which this one names.
    assert set(connection["conn-fields"]) == {
        *("backend", "storage", "root"),
        *("kubernetes_conn_id", "namespace", "image", "reach", "url", "options"),
    }
    assert {"login", "password"} <= set(connection["ui-field-behaviour"]["hidden-fields"])
