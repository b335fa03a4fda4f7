"""Airflow's entry point ``apache_airflow_provider``: what this package adds. Plain data; imports no Airflow."""

from __future__ import annotations

from typing import Any

from airflow_raytpu import __version__

_VERSION_ADDED = "0.1.0"


def get_provider_info() -> dict[str, Any]:
    """The provider's description, in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-raytpu",
        "name": "Ray on TPU",
        "description": "Run Ray on TPU slices: clusters, JAX training, batch inference and serving rollouts.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": "Ray on TPU",
                "external-doc-url": "https://docs.ray.io/",
                "tags": ["software"],
            }
        ],
        "operators": _modules(
            "operators.cluster",
            "operators.train",
            "operators.inference",
            "operators.serve",
            "operators.job",
            "operators.reap",
        ),
        "sensors": _modules("sensors.capacity"),
        "hooks": _modules("hooks.raytpu"),
        "triggers": _modules("triggers.watch", "triggers.capacity"),
        "extra-links": [
            "airflow_raytpu.links.RayDashboardLink",
            "airflow_raytpu.links.CheckpointLink",
            "airflow_raytpu.links.ProfileLink",
            "airflow_raytpu.links.EndpointLink",
        ],
        "task-decorators": [
            {"name": "jax_train", "class-name": "airflow_raytpu.decorators.train.jax_train_task"},
            {"name": "jax_batch", "class-name": "airflow_raytpu.decorators.inference.jax_batch_task"},
            {"name": "ray_tpu", "class-name": "airflow_raytpu.decorators.job.ray_tpu_task"},
        ],
        "connection-types": [_connection_type()],
        "config": {
            "raytpu": {
                "description": "Ray on TPU slices (airflow-raytpu).",
                "options": _options(),
            }
        },
    }


def _modules(*names: str) -> list[dict[str, Any]]:
    return [{"integration-name": "Ray on TPU", "python-modules": [f"airflow_raytpu.{name}" for name in names]}]


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "raytpu",
        "hook-name": "Ray on TPU",
        "hook-class-name": "airflow_raytpu.hooks.raytpu.RayTpuHook",
        "ui-field-behaviour": {
            "hidden-fields": ["host", "schema", "login", "password", "port", "extra"],
            "relabeling": {},
            "placeholders": {"storage": "gs://bucket/path or file:///shared/path"},
        },
        "conn-fields": {
            "backend": {
                "label": "Backend",
                "description": "Where clusters run. 'simulated' makes slices of processes on the worker's own machine; "
                "'kuberay' makes RayClusters on Kubernetes.",
                "schema": {"type": ["string", "null"], "enum": ["simulated", "kuberay"], "default": "simulated"},
            },
            "storage": {
                "label": "Storage",
                "description": "Where code, checkpoints and results go: gs://bucket/path or file:///shared/path.",
                "schema": {"type": ["string", "null"]},
            },
            "kubernetes_conn_id": _text(
                "Kubernetes connection", "Id of a connection of type kubernetes; kubernetes_default where left out."
            ),
            "namespace": _text("Namespace", "Where RayClusters and RayJobs are made; default where left out."),
            "image": _text("Image", "Image of head and workers, with Ray and JAX for TPU in it."),
            "reach": {
                "label": "Way to Ray",
                "description": "How Airflow reaches a cluster: its Service (inside Kubernetes), the API server's proxy "
                "(outside), or the URL below. 'auto' takes one of the first two.",
                "schema": {"type": ["string", "null"], "enum": ["auto", "service", "proxy", "url"], "default": "auto"},
            },
            "url": _text("URL of Ray", "Base URL of a dashboard, with {namespace} and {cluster} in it."),
            "options": _text("Options", "Further options of every cluster, as JSON; see the page KubeRay on GKE."),
            "root": {
                "label": "Simulated root",
                "description": "Folder for the state of simulated clusters; a short path, as Unix sockets need.",
                "schema": {"type": ["string", "null"]},
            },
        },
    }


def _text(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


def _options() -> dict[str, Any]:
    return {
        "deployment": _option(
            "Name of this Airflow deployment, part of every remote object's identity. Two deployments that share a "
            "namespace or a storage root need different names.",
            "string",
            "airflow",
            "ml-production",
        ),
        "storage": _option(
            "Root for code, checkpoints and results where the connection names none: gs://bucket/path, or file:///path "
            "on a disk that every worker shares. Empty means the folder raytpu in AIRFLOW_HOME.",
            "string",
            "",
            "gs://bucket/raytpu",
        ),
        "poll_interval": _option("Seconds between two looks at a running request.", "float", "2.0", "10"),
    }


def _option(description: str, kind: str, default: str, example: str) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": _VERSION_ADDED,
        "type": kind,
        "default": default,
        "example": example,
    }
