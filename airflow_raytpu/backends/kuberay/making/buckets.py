"""Cloud Storage buckets as folders of the pods, through GKE's Cloud Storage FUSE driver (1.29.3 and up). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_raytpu.model.kuberay import BucketMount

ANNOTATION = "gke-gcsfuse/volumes"
DRIVER = "gcsfuse.csi.storage.gke.io"
CACHE = "gke-gcsfuse-cache"
"""The name that the driver's sidecar looks for; another is ignored."""

_SIDECAR = {
    f"gke-gcsfuse/{what}": value
    for what, value in (
        ("cpu-request", "250m"),
        ("memory-request", "512Mi"),
        ("ephemeral-storage-request", "5Gi"),
        # None at all: a sidecar at its limit shows as "Transport endpoint is not connected".
        ("cpu-limit", "0"),
        ("memory-limit", "0"),
        ("ephemeral-storage-limit", "0"),
    )
}


def mount_annotations(mounts: Sequence[BucketMount]) -> dict[str, str]:
    """Of every pod template that mounts one."""
    return {ANNOTATION: "true", **_SIDECAR} if mounts else {}


def volumes(mounts: Sequence[BucketMount]) -> list[dict[str, Any]]:
    if not mounts:
        return []
    return [*(_volume(f"bucket-{index}", mount) for index, mount in enumerate(mounts)), {"name": CACHE, "emptyDir": {}}]


def volume_mounts(mounts: Sequence[BucketMount]) -> list[dict[str, Any]]:
    return [
        {"name": f"bucket-{index}", "mountPath": mount.path, "readOnly": mount.read_only}
        for index, mount in enumerate(mounts)
    ]


def _volume(name: str, mount: BucketMount) -> dict[str, Any]:
    attributes = {"bucketName": mount.bucket}
    if mount.options:
        attributes["mountOptions"] = mount.options
    return {"name": name, "csi": {"driver": DRIVER, "readOnly": mount.read_only, "volumeAttributes": attributes}}
