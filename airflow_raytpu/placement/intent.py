"""What is known of a request before it runs: what preflight looks at. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.kuberay import Provisioning
from airflow_raytpu.model.request import Kind

__all__ = ["Intent", "Provisioning", "Serving", "Supply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """How a cluster of one's own is come by; the defaults are what simulated slices do.

    :param grace_s: seconds that a pod is given to end (``terminationGracePeriodSeconds``).
    :param save_s: seconds that one checkpoint takes, as last seen.
    :param run_limit_s: seconds after which flex-start or queued nodes are taken away.
    :param queue: Kueue's local queue.
    :param groups: names of the worker groups without TPUs.
    :param elastic: the annotation ``kueue.x-k8s.io/elastic-job`` is set.
    """

    provisioning: Provisioning = Provisioning.ON_DEMAND
    grace_s: float | None = None
    save_s: float | None = None
    run_limit_s: float | None = None
    queue: str | None = None
    groups: tuple[str, ...] = ()
    autoscaling: bool = False
    elastic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a serving request adds.

    :param smoke: how many smoke requests a new version must answer.
    :param deadline_s: seconds for a new version to become healthy.
    :param second_cluster: a new version gets a cluster of its own first (RayService's default upgrade).
    :param model_chips: chips that one replica's model spans; ``None`` where nobody says.
    :param model_topology: topology that the replica asks for.
    """

    smoke: int = 0
    deadline_s: float | None = None
    route_prefix: str | None = None
    second_cluster: bool = False
    model_chips: int | None = None
    model_topology: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One request, as far as it is known. What is templated and not yet rendered is left out.

    :param slice: the slice it states, as text; ``None`` takes the cluster's.
    :param cluster_slice: the slice of the cluster it runs on, where that is known.
    :param cluster: name of somebody else's cluster.
    :param placed: it says where it runs: a slice, or a cluster.
    :param open: arguments that are known only when it runs.
    :param addresses: argument to storage address.
    :param batches: argument to rows of one global batch.
    :param elastic: the fewest and the most slices of an elastic task, as it states them.
    :param failures: restarts after the author's own errors.
    :param not_json: the part of the config that is no JSON, in a sentence.
    :param jax_at_top: where the author's module imports jax outside of any function, as ``file:line``.
    :param execution_timeout_s: Airflow's own limit on the task, in seconds.
    :param ttl_s: how long a cluster outlives the last look that Airflow took at it, in seconds.
    """

    kind: Kind
    dag_id: str = ""
    task_id: str = ""
    slice: str | None = None
    cluster_slice: str | None = None
    cluster: str | None = None
    placed: bool = True
    open: tuple[str, ...] = ()
    deadlines: Deadlines = field(default_factory=Deadlines)
    execution_timeout_s: float | None = None
    ttl_s: float = 300.0
    addresses: Mapping[str, str] = field(default_factory=dict)
    batches: Mapping[str, Any] = field(default_factory=dict)
    elastic: Any = None
    ragged: str | None = None
    resume: str | None = None
    on_nan: str | None = None
    failures: int | None = None
    not_json: str = ""
    jax_at_top: str = ""
    supply: Supply = Supply()
    serving: Serving | None = None
