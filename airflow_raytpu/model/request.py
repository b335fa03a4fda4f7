"""What is asked for: everything a backend and the runtime need, as one frozen value that survives JSON."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_raytpu.model.deadlines import Limits
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.identity import CLUSTER_NAME_LIMIT, JOB_NAME_LIMIT, Identity

ARGUMENTS_LIMIT = 1_000_000
"""Largest arguments, in bytes of JSON: a Kubernetes object may hold 1.5 MB in all (etcd)."""


class Kind(enum.Enum):
    """What runs. The value is the name of the runtime module that carries it out."""

    CLUSTER = "cluster"
    TRAIN = "train"
    INFERENCE = "inference"
    JOB = "job"
    SERVE = "serve"

    @property
    def is_job(self) -> bool:
        return self is not Kind.CLUSTER


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRequest:
    """One request for one attempt.

    :param slice: canonical slice text, as ``str(TpuSlice)`` writes it; empty for a job that takes the cluster's own.
    :param cluster: name of the shared cluster a job runs on; ``None`` gives it a cluster of its own.
    :param arguments: what the runtime module of this kind reads; JSON values only, never a secret.
    :param code: URI of the staged code, ``None`` for a cluster.
    :param storage: URI of this task's folder in storage, the same for every attempt.
    :param limits: the absolute deadlines.
    :param ttl_s: seconds after which a cluster with no sign of life from Airflow is given back.
    :param shared: a cluster, or the service of an application, that other DAG runs use under the same name: once it was
        of use it is never stopped. A cluster is left to its *ttl*, a service is there until it is deleted.
    :param options: how the backend makes a cluster, in the backend's own words (JSON); empty for its defaults.
    """

    identity: Identity
    kind: Kind
    slice: str
    storage: str
    limits: Limits
    cluster: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    ttl_s: float = 300.0
    shared: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = len(json.dumps([dict(self.arguments), dict(self.options)], allow_nan=False))
        if size > ARGUMENTS_LIMIT:
            raise RequestError(
                f"The arguments of {self.identity.task_id} take {size:,} bytes of JSON; {ARGUMENTS_LIMIT:,} fit.",
                "Put large values in storage and pass their URI.",
            )

    @property
    def name(self) -> str:
        """The remote object's name."""
        return self.identity.remote_name(JOB_NAME_LIMIT if self.kind.is_job else CLUSTER_NAME_LIMIT)

    @property
    def cluster_name(self) -> str:
        """The cluster it runs on: the shared one, the one it is, or one of its own."""
        return self.cluster or self.name

    @property
    def owns_cluster(self) -> bool:
        return self.cluster is None

    @property
    def unwatched_s(self) -> float:
        """Seconds without a look of Airflow's after which the work ends itself.

        Longer than a cluster's own time, so that the retry of a lost worker still finds what runs on a shared one.
        """
        return 3 * self.ttl_s

    def outbox(self, what: str) -> str:
        """URI of one file of this attempt: ``request``, ``progress``, ``result`` or ``used``."""
        return f"{self.storage}/outbox/{self.name}.{what}.json"

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": 1,
            "name": self.name,
            "identity": self.identity.to_dict(),
            "kind": self.kind.value,
            "slice": self.slice,
            "storage": self.storage,
            "limits": self.limits.to_dict(),
            "cluster": self.cluster,
            "arguments": dict(self.arguments),
            "code": self.code,
            "ttl_s": self.ttl_s,
            "shared": self.shared,
            "options": dict(self.options),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RayRequest:
        """:raises RequestError: a newer version of this package wrote it."""
        if data["version"] != 1:
            raise RequestError(
                f"This request has format version {data['version']}, and only 1 is known here.",
                "Upgrade airflow_raytpu on the worker, triggerer and cluster together.",
            )
        return cls(
            identity=Identity.from_dict(data["identity"]),
            kind=Kind(data["kind"]),
            slice=data["slice"],
            storage=data["storage"],
            limits=Limits.from_dict(data["limits"]),
            cluster=data["cluster"],
            arguments=data["arguments"],
            code=data["code"],
            ttl_s=data["ttl_s"],
            shared=data.get("shared", False),
            options=data.get("options", {}),
        )
