"""The small values that :class:`~airflow_raytpu.model.kuberay.KubeRayOptions` is made of."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Provisioning(enum.Enum):
    """How GKE comes by the nodes."""

    ON_DEMAND = "on-demand"
    RESERVATION = "reservation"
    SPOT = "spot"
    FLEX_START = "flex-start"
    QUEUED = "queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a pod asks for, as Kubernetes quantities; memory and disk are limits too, CPU is not.

    :param ephemeral_storage: the node's own disk; what the node has to spare where empty.
    """

    cpu: str
    memory: str
    ephemeral_storage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuGroup:
    """Workers without TPUs beside the slices, for data loading or a proxy.

    :param cpus: of one worker.
    """

    name: str
    replicas: int = 1
    cpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketMount:
    """A Cloud Storage bucket as a folder of every pod, through GKE's Cloud Storage FUSE driver.

    :param path: absolute, where it is mounted.
    :param options: mount options, comma-separated; ``implicit-dirs`` shows folders that nobody made.
    """

    bucket: str
    path: str
    read_only: bool = False
    options: str = "implicit-dirs"
