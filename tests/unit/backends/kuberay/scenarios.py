"""What the golden files are made of: one request and its options each, under the file's name."""

from __future__ import annotations

from typing import Any

from airflow_raytpu.backends.kuberay.manifest import manifest
from airflow_raytpu.model import application
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.request import Kind, RayRequest

NOW = 1_764_000_000.0
IMAGE = "europe-west4-docker.pkg.dev/example/ml/ray-tpu:2.60.0"
IDENTITY = Identity(
    deployment="prod", dag_id="digits", task_id="train", run_id="scheduled__2026-11-29T00:00:00+00:00", map_index=-1
)
SERVING = {
    "name": "digits",
    "app": "digits.serve:build",
    "app_args": {},
    "model": "gs://bucket/runs/digits/train/checkpoints/2000",
    "route_prefix": "/",
    "rollout": {"smoke": [], "deadline_s": 600.0},
}


def request(kind: Kind = Kind.TRAIN, tpu_slice: str = "v6e:4x4", **changes: Any) -> RayRequest:
    values = {
        "identity": IDENTITY,
        "kind": kind,
        "slice": tpu_slice,
        "storage": f"gs://bucket/runs/{IDENTITY.storage_path()}",
        "limits": Deadlines().since(NOW),
        "code": None if kind is Kind.CLUSTER else "gs://bucket/runs/code/0f1e2d3c.zip",
        "arguments": SERVING if kind is Kind.SERVE else {},
    }
    return RayRequest(**values | changes)


def made(asked: RayRequest, **options: Any) -> dict[str, Any]:
    """The manifest of *asked*, with the image given and JSON options."""
    return manifest(asked, KubeRayOptions.from_dict({"image": IMAGE, **options}), NOW)


_SIDECAR = {
    "metadata": {"annotations": {"example.com/scrape": "true"}},
    "spec": {
        "containers": [
            {"name": "ray", "env": [{"name": "LIBTPU_INIT_ARGS", "value": "--xla_tpu_x=true"}]},
            {"name": "logs", "image": "example/fluent-bit:3", "resources": {"requests": {"cpu": "100m"}}},
        ]
    },
}
_PATCH = {
    "spec": {
        "rayClusterSpec": {
            "headServiceAnnotations": {"example.com/internal": "true"},
            "headGroupSpec": {"template": {"spec": {"nodeSelector": {"cloud.google.com/gke-nodepool": "heads"}}}},
        }
    }
}
_CONTAINER = {
    "name": "main",
    "image": IMAGE,
    "resources": {
        "limits": {"google.com/tpu": "4", "memory": "300Gi"},
        "requests": {"google.com/tpu": "4", "cpu": "24", "memory": "300Gi"},
    },
    "env": [{"name": "JAX_PLATFORMS", "value": "tpu,cpu"}],
}
WHOLE = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "ours-by-hand", "labels": {"team": "digits"}},
    "spec": {
        "rayVersion": "2.60.0",
        "headGroupSpec": {
            "rayStartParams": {"dashboard-host": "0.0.0.0"},
            "template": {"spec": {"containers": [{"name": "head", "image": IMAGE}]}},
        },
        "workerGroupSpecs": [
            {
                "groupName": "slices",
                "replicas": 1,
                "minReplicas": 1,
                "maxReplicas": 1,
                "numOfHosts": 4,
                "rayStartParams": {},
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "nodeSelector": {
                            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
                            "cloud.google.com/gke-tpu-topology": "4x4",
                        },
                        "containers": [_CONTAINER],
                    }
                },
            }
        ],
    },
}

SCENARIOS: dict[str, tuple[str, RayRequest, dict[str, Any]]] = {
    "cluster": ("A shared cluster of one v6e 4x4 slice, with all that is not asked for left alone.",
                request(Kind.CLUSTER), {}),
    "job": ("A training job with a cluster of its own.", request(), {}),
    "two_slices": ("One job over two slices: replicas counts slices, not pods.", request(tpu_slice="v6e:4x4*2"), {}),
    "two_hosts": ("v6e 2x4 on two four-chip machines, which the two TPU labels alone do not tell from one of eight.",
                  request(tpu_slice="v6e:2x4@4t"), {}),
    "spot": ("Spot nodes, and 25 s for a worker to save.",
             request(), {"provisioning": "spot", "grace_s": 25.0}),
    "reservation": ("Nodes of a reservation in another project.", request(tpu_slice="v5p:2x2x2"),
                    {"provisioning": "reservation", "reservation": "tpu-q4", "reservation_project": "capacity",
                     "reservation_block": "block-2"}),
    "flex_start": ("Flex-start nodes for at most six hours, and so a deadline to match.", request(),
                   {"provisioning": "flex-start", "run_limit_s": 21600.0}),
    "queued": ("Queued provisioning through Kueue, at a high priority.", request(),
               {"provisioning": "queued", "run_limit_s": 21600.0, "queue": "tpu", "queue_priority": "high"}),
    "elastic": ("A cluster that Ray's autoscaler grows from one slice to four, as far as Kueue has quota.",
                request(Kind.CLUSTER),
                {"autoscaling": True, "min_slices": 1, "max_slices": 4, "idle_s": 900.0, "queue": "tpu",
                 "elastic": True}),
    "single_hosts": ("Up to three single hosts: a group each, so that a replaced one keeps its index.",
                     request(Kind.CLUSTER, "v5e:2x2"), {"autoscaling": True, "min_slices": 0, "max_slices": 3}),
    "compute_class": ("Nodes by a ComputeClass, which says all about how they are come by.", request(),
                      {"compute_class": "tpu-any"}),
    "team": ("Buckets, a service account, a private registry, secrets, sizes: what a team sets once.", request(),
             {"service_account": "ray", "image_pull_secrets": ["registry"], "image_pull_policy": "IfNotPresent",
              "priority_class": "batch", "namespace": "ml",
              "buckets": [{"bucket": "example-data", "path": "/data", "read_only": True}],
              "env": {"HF_HOME": "/data/hf"}, "secret_env": {"HF_TOKEN": "hf-token/token"},
              "labels": {"team": "digits"}, "worker": {"cpu": "24", "memory": "200Gi", "ephemeral_storage": "40Gi"},
              "head": {"cpu": "8", "memory": "32Gi"}}),
    "cpu_groups": ("CPU-only workers for data loading beside the slice.", request(Kind.INFERENCE),
                   {"cpu_groups": [{"name": "load", "replicas": 2, "cpus": 16}]}),
    "largest": ("64 hosts, privileged as v6e 16x16 needs it.", request(tpu_slice="v6e:16x16"), {"privileged": True}),
    "serve": ("An application with a service of its own.", application.service(request(Kind.SERVE, "v6e:2x2")), {}),
    "overlays": ("A sidecar on every pod, a variable more for Ray, and the head on a node pool of its own.", request(),
                 {"pod_template": _SIDECAR, "manifest": _PATCH}),
    "whole": ("A RayCluster that the author wrote, made a job's.", request(), {"whole": WHOLE}),
}  # fmt: skip
"""Name to what it shows, the request and the options (JSON)."""
