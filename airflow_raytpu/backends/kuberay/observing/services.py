"""What a RayService is (KubeRay 1.7). Its own ``Ready`` only means that one proxy answers. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_raytpu.backends.kuberay.observing import clusters
from airflow_raytpu.backends.kuberay.observing.reading import (
    Object,
    at,
    behind,
    condition,
    created,
    line,
    name,
    part,
    text,
)
from airflow_raytpu.model.errors import ManifestError, RolloutError, StartTimeout
from airflow_raytpu.model.observation import ClusterState, Fault

_SERVE_PORT = 8000
_FAILED_FOR_S = 30.0
"""How long a failed deployment must stand: a status that was read before the new configuration was sent passes."""


def state(service: Object) -> ClusterState:
    """Of a service that exists and is not being deleted."""
    if at(service, "spec", "suspend") is True or any(
        condition(service, kind).holds for kind in ("Suspending", "Suspended")
    ):
        return ClusterState.SUSPENDED
    return ClusterState.READY if _ready(service) else ClusterState.STARTING


def cluster_name(service: Object) -> str:
    """Of the cluster that comes up, while one does, else of the one that serves."""
    return _version(service, "pendingServiceStatus") or _version(service, "activeServiceStatus")


def is_submitted(service: Object) -> bool:
    """Serve knows an application of it."""
    return any(_apps(service, which) for which in ("pendingServiceStatus", "activeServiceStatus"))


def detail(service: Object) -> str:
    """``app digits DEPLOYING: ...; Ready is false: ZeroServeEndpoints``."""
    ready = condition(service, "Ready")
    words = [*_apps_in_words(service)]
    if condition(service, "UpgradeInProgress").holds:
        words.append("an upgrade is in progress")
    if condition(service, "RollbackInProgress").holds:
        words.append("a rollback is in progress")
    if ready.holds is not True and (ready.reason or ready.message):
        words.append(": ".join(filter(None, (ready.reason, ready.message))))
    return line("; ".join(words), clusters.DETAIL_LIMIT)


def fault(service: Object, now: float) -> Fault | None:
    """What makes further waiting useless."""
    ready = condition(service, "Ready")
    if ready.holds is not True and ready.reason == "ValidationFailed":
        return Fault(
            code=ManifestError.code,
            cause=line(f"KubeRay refuses the RayService: {ready.message or 'it does not say why'}"),
            lever="Correct what it names; the object itself has to change.",
        )
    if ready.holds is not True and ready.reason == "InitializingTimeout":
        return Fault(
            code=StartTimeout.code,
            cause=line(f"KubeRay gave the RayService up while it was initialising. {ready.message}"),
            lever="Raise start; KubeRay does not try again by itself.",
        )
    failed = [] if behind(service) else [words for words in _apps_in_words(service) if " DEPLOY_FAILED" in words]
    if failed and now - max(ready.since, created(service)) >= _FAILED_FOR_S:
        return Fault(
            code=RolloutError.code,
            cause=line(f"Serve could not deploy: {'; '.join(failed)}", 600),
            lever="The application's own error is above; see the logs of its replicas.",
        )
    return None


def facts(service: Object, of_cluster: dict[str, Any]) -> dict[str, Any]:
    """What it offers: the addresses of its cluster, and its own endpoint, which outlives clusters."""
    where = f"{name(service)}-serve-svc.{text(service, 'metadata', 'namespace')}.svc"
    return {**of_cluster, "name": name(service), "endpoint": f"http://{where}:{_SERVE_PORT}"}


def _ready(service: Object) -> bool:
    apps = _apps(service, "activeServiceStatus")
    return (
        condition(service, "Ready").holds is True
        and not behind(service)
        and not condition(service, "UpgradeInProgress").holds
        and bool(apps)
        and all(text(app, "status") == "RUNNING" for app in apps.values())
    )


def _apps(service: Object, which: str) -> dict[str, Object]:
    found = part(service, "status", which, "applicationStatuses")
    return {str(app): part(found, app) for app in found}


def _apps_in_words(service: Object) -> Iterator[str]:
    """Each application that does not run: of the version that comes up, while one does."""
    which = "pendingServiceStatus" if _version(service, "pendingServiceStatus") else "activeServiceStatus"
    for app, found in sorted(_apps(service, which).items()):
        if text(found, "status") != "RUNNING":
            yield line(f"app {app} {text(found, 'status') or 'NOT_STARTED'}: {text(found, 'message')}".rstrip(": "))


def _version(service: Object, which: str) -> str:
    return text(service, "status", which, "rayClusterName")
