"""``airflow-raytpu doctor`` as a user types it, and what it prints."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from airflow_raytpu import cli
from airflow_raytpu.doctor import screen, storage
from airflow_raytpu.doctor.findings import error, ok, warning
from airflow_raytpu.hooks import kubernetes as access
from airflow_raytpu.model.errors import SliceShapeError
from tests.doubles.kubernetes.access import TestAccess

LONG = "gs://bucket/" + "a-very-long-name/" * 12
FOUND = [
    ok("API server", "v1.36.0"),
    warning("nodes", f"No node. {LONG}", "Make a pool.", "gcloud x \\\n    --y"),
    error(
        "RBAC", "2 rights are missing: watch rayjobs.ray.io, and more that goes on and on.", "Grant them.", "kubectl z"
    ),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(output: str = "text", file: io.StringIO | None = None) -> str:
    file = file or io.StringIO()
    screen.show(FOUND, "prod: KubeRay", output, file)
    return file.getvalue()


def test_on_a_screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = shown()
    assert max(map(len, text.splitlines())) <= 80
    assert "".join(text.split()).count("a-very-long-name/") == 12
    lines = text.splitlines()
    assert lines[:3] == ["prod: KubeRay", "", "  ok       API server   v1.36.0"]
    assert lines[3].startswith("  warning  nodes        No node. gs://bucket/")
    assert lines[-7:] == [
        "    gcloud x \\",
        "        --y",
        "  error    RBAC         2 rights are missing: watch rayjobs.ray.io, and more",
        "                        that goes on and on. Grant them.",
        "    kubectl z",
        "",
        "1 ok, 1 warning, 1 error",
    ]


def test_a_command_is_shown_once():
    file = io.StringIO()
    screen.show([error("a", "x", "y", "kubectl z"), error("b", "x", "y", "kubectl z")], "t", "text", file)
    assert file.getvalue().count("kubectl z") == 1


def test_colour_is_for_terminals(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in shown()
    assert "\x1b[1;31merror" in shown(file=Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;31m" not in shown(file=Terminal())


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_the_same_as_data(output, load):
    assert load(shown(output)) == [each.to_dict() for each in FOUND]


def run(*arguments: str):
    return CliRunner().invoke(cli.commands, ["doctor", *arguments])


def test_simulated_slices(place):
    place()
    result = run("--slice", "v6e:4x4", "--output", "json")
    checks = [each["check"] for each in json.loads(result.output)]
    assert checks == ["platform", "packages", "memory", "disk", "socket path", storage.CHECK]
    levels = {each["level"] for each in json.loads(result.output)}
    assert result.exit_code == (1 if "error" in levels else 0)
    assert run().output.startswith("raytpu_default: simulated slices on this machine, storage")


async def test_kuberay_through_a_connection(place, kubernetes, monkeypatch):
    """The command has an event loop of its own, so it runs in a thread beside the server's."""
    import asyncio

    monkeypatch.setattr(access, "KubernetesAccess", lambda conn_id: TestAccess(kubernetes.url, kubernetes.token))
    options = {"namespace": "ml", "image": "x", "service_account": "ray-tpu"}
    place(backend="kuberay", kubernetes_conn_id="k8s", options=options)
    result = await asyncio.to_thread(run, "--slice", "v6e:4x4", "--conn-id", "prod")
    assert result.exit_code == 0, result.output
    assert result.output.replace("\n ", "").startswith("prod: KubeRay, namespace ml, storage file://")
    assert "0 errors" in result.output
    result = await asyncio.to_thread(run, "--namespace", "absent")
    assert result.exit_code == 1
    assert "There is no namespace absent." in result.output
    assert "\n    kubectl create namespace absent\n" in result.output


def test_a_kubernetes_connection_that_is_not_there(place):
    place(backend="kuberay", kubernetes_conn_id="k8s", options={"namespace": "ml"})
    result = run()
    assert result.exit_code == 1
    assert "There is no Kubernetes connection 'k8s'" in result.output
    assert "airflow connections add k8s --conn-type kubernetes" in " ".join(result.output.split())


def test_a_shape_that_does_not_exist(place):
    place()
    assert isinstance(run("--slice", "v6e:4x5").exception, SliceShapeError)


def test_it_loads_no_client_before_it_needs_one():
    heavy = {"ray", "jax", "numpy", "kubernetes", "kubernetes_asyncio", "google.cloud"}
    modules = "airflow_raytpu.doctor.command, airflow_raytpu.doctor.cluster"
    code = f"import sys, {modules}; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
