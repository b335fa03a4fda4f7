"""What KubeRay asks of a cluster's dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import yaml
from yarl import URL

from tests.doubles.kubernetes.store import Item

_WITHIN = aiohttp.ClientTimeout(total=20.0)


class Dashboard:
    """One cluster's dashboard.

    :param url: its base URL on this machine.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._session = session
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}

    async def submit(self, job: Item) -> str:
        """Submit as the operator does in HTTPMode; why it is refused, empty where it is not."""
        spec = job["spec"]
        body: dict[str, Any] = {"entrypoint": spec["entrypoint"], "submission_id": job["status"]["jobId"]}
        if spec.get("runtimeEnvYAML"):
            body["runtime_env"] = yaml.safe_load(spec["runtimeEnvYAML"])
        if spec.get("metadata"):
            body["metadata"] = dict(spec["metadata"])
        for name, field in (("entrypointNumCpus", "entrypoint_num_cpus"), ("entrypointNumGpus", "entrypoint_num_gpus")):
            if spec.get(name):
                body[field] = spec[name]
        status, text = await self._ask("POST", "/api/jobs/", json=body)
        return "" if status == 200 else f"SubmitJob fail: {status} {text[-500:]}"

    async def job(self, name: str) -> Mapping[str, Any] | None:
        status, text = await self._ask("GET", f"/api/jobs/{name}")
        if status == 404:
            return None
        return dict(yaml.safe_load(text)) if status == 200 else _not_now(status)

    async def stop(self, name: str) -> None:
        await self._ask("POST", f"/api/jobs/{name}/stop")

    async def deploy(self, config: str, endpoint: str) -> str:
        """Send a Serve config; why it is refused, empty where it is not.

        :param endpoint: where this machine has what the config calls the pod's own address and port.
        """
        at = URL(endpoint)
        body = yaml.safe_load(config)
        body["http_options"] = {**(body.get("http_options") or {}), "host": at.host, "port": at.port}
        status, text = await self._ask("PUT", "/api/serve/applications/", json=body)
        return "" if status == 200 else f"fail to update: {status} {text[-500:]}"

    async def applications(self) -> dict[str, Any]:
        """Serve's applications by name, as a RayService's status has them."""
        status, text = await self._ask("GET", "/api/serve/applications/")
        if status != 200:
            _not_now(status)
        found = {}
        for name, each in (yaml.safe_load(text).get("applications") or {}).items():
            deployments = {
                part: {"status": about["status"], "message": about.get("message") or ""}
                for part, about in (each.get("deployments") or {}).items()
            }
            shown = {"status": each["status"], "message": each.get("message") or ""}
            found[name] = {**shown, "serveDeploymentStatuses": deployments}
        return found

    async def _ask(self, method: str, path: str, **body: Any) -> tuple[int, str]:
        async with self._session.request(
            method, self._url + path, headers=self._headers, timeout=_WITHIN, **body
        ) as reply:
            return reply.status, await reply.text()


def _not_now(status: int) -> Any:
    raise aiohttp.ClientError(f"the dashboard says {status}")
