"""The Serve applications of the cluster this driver is on, through Serve's declarative REST API (Ray 2.60).

A PUT states all applications at once, so each of ours is merged into what is there: the others keep their configuration
to the letter. Used by :mod:`airflow_raytpu.runtime.serve`.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from airflow_raytpu.model.errors import BackendUnreachable

DEFAULT_ENDPOINT = "http://127.0.0.1:8000"
_NAMESPACE = b"airflow_raytpu"
_LAST_GOOD = "serve/last-good/"


class Health(enum.Enum):
    """What Serve's words for an application mean to a rollout."""

    HEALTHY = "healthy"
    WAITING = "waiting"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AppView:
    """One application as Serve shows it.

    :param config: its declarative configuration; empty for one that was deployed from Python.
    :param running: replicas that run, of ``wanted``.
    :param message: Serve's own words, with the replica's traceback where it failed.
    """

    name: str
    health: Health
    config: Mapping[str, Any] = field(default_factory=dict)
    running: int = 0
    wanted: int = 0
    message: str = ""

    @property
    def version(self) -> str:
        return str((self.config.get("args") or {}).get("version", ""))


def views(details: Mapping[str, Any]) -> dict[str, AppView]:
    """Every application in the answer of ``GET /api/serve/applications/``. Pure."""
    return {name: _view(name, app) for name, app in (details.get("applications") or {}).items()}


def _view(name: str, app: Mapping[str, Any]) -> AppView:
    deployments = list((app.get("deployments") or {}).values())
    status = app.get("status")
    states = {deployment.get("status") for deployment in deployments}
    health = Health.WAITING
    if status == "RUNNING" and states <= {"HEALTHY"}:
        health = Health.HEALTHY
    elif status == "DEPLOY_FAILED":
        health = Health.FAILED
    replicas = [replica for deployment in deployments for replica in deployment.get("replicas") or ()]
    messages = [app.get("message") or "", *(str(deployment.get("message") or "") for deployment in deployments)]
    return AppView(
        name=name,
        health=health,
        config=app.get("deployed_app_config") or {},
        running=sum(replica.get("state") == "RUNNING" for replica in replicas),
        wanted=sum(int(deployment.get("target_num_replicas") or 0) for deployment in deployments),
        message="\n".join(dict.fromkeys(message.strip() for message in messages if message.strip())),
    )


def merged(seen: Mapping[str, AppView], name: str, config: Mapping[str, Any] | None, endpoint: str) -> dict[str, Any]:
    """The body of a PUT that gives *name* the configuration *config*, or removes it, and no other change. Pure."""
    # An application that was deployed from Python has no configuration, and a PUT does not touch it.
    others = [dict(view.config) for view in seen.values() if view.config and view.name != name]
    where = urlsplit(endpoint)
    return {
        # The endpoint is the head's, so that no host of a slice carries a proxy.
        "proxy_location": "HeadOnly",
        "http_options": {"host": where.hostname, "port": where.port or 8000},
        "applications": others if config is None else [*others, dict(config)],
    }


class Applications:
    """Reads and changes them. Every call is short; the callers wait."""

    def __init__(self) -> None:
        from ray._private.worker import get_dashboard_url
        from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

        self.endpoint = os.environ.get("RAYTPU_ENDPOINT", DEFAULT_ENDPOINT).rstrip("/")
        # Where Serve listens on all addresses of a pod, others reach it by the name of a Service.
        self.public = os.environ.get("RAYTPU_PUBLIC_ENDPOINT", self.endpoint).rstrip("/")
        self._client = ServeSubmissionClient(f"http://{get_dashboard_url()}")

    def views(self) -> dict[str, AppView]:
        """:raises BackendUnreachable: the dashboard gave no answer."""
        return views(self._call(self._client.get_serve_details))

    def view(self, name: str) -> AppView | None:
        return self.views().get(name)

    def put(self, name: str, config: Mapping[str, Any] | None) -> None:
        """Give *name* this configuration; ``None`` removes it.

        :raises BackendUnreachable: the dashboard gave no answer, or refused.
        """
        body = merged(self.views(), name, config, self.endpoint)
        self._call(lambda: self._client.deploy_applications(body))

    def last_good(self, name: str) -> dict[str, Any] | None:
        """The configuration that last proved healthy. Kept in the cluster, and so as long as the application."""
        from ray.experimental.internal_kv import _internal_kv_get

        kept = _internal_kv_get(_key(name), namespace=_NAMESPACE)
        return None if kept is None else json.loads(kept)

    def keep_good(self, name: str, config: Mapping[str, Any]) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(_key(name), json.dumps(dict(config)).encode(), overwrite=True, namespace=_NAMESPACE)

    def _call(self, what: Any) -> Any:
        try:
            return what()
        except (OSError, RuntimeError) as error:
            # requests' errors are OSErrors; Ray raises RuntimeError for any status but 200.
            raise BackendUnreachable(
                f"Serve's API on the dashboard did not do as told: {error}", "See the dashboard's log on the Ray head."
            ) from error


def _key(name: str) -> bytes:
    return f"{_LAST_GOOD}{name}".encode()
