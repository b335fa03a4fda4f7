"""All that is looked at in a Kubernetes place, in the order in which it would fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from airflow_raytpu.doctor import belongings, kuberay, nodes, rights
from airflow_raytpu.doctor.findings import Found, error, ok, warning
from airflow_raytpu.doctor.visit import Visit
from airflow_raytpu.model.errors import RayTpuError
from airflow_raytpu.model.kuberay import Provisioning

Check = Callable[[Visit], AsyncIterator[Found]]

CHECKS: dict[str, Check] = {
    "namespace": rights.namespace,
    "KubeRay": kuberay.kinds,
    "CRDs": kuberay.fields,
    "TPU webhook": kuberay.webhook,
    "RBAC": rights.rights,
    "image": belongings.image,
    "account": belongings.account,
    "secrets": belongings.secrets,
    "queue": belongings.queue,
    "nodes": nodes.pools,
    "token auth": kuberay.tokens,
}

_GKE = "-gke."
_YOUNG = {"v6e": "1.31.1-gke.1846000", "flex-start": "1.33.0-gke.1712000"}
"""The first GKE version that has it."""


async def looked_at(visit: Visit) -> list[Found]:
    """What was found. A server that does not answer ends the visit; a check that cannot be made does not."""
    try:
        found = [_server(visit, await visit.api.server_version())]
    except RayTpuError as trouble:
        return [error("API server", trouble.cause, trouble.lever or "See the connection's credentials.")]
    for name, check in CHECKS.items():
        try:
            found += [each async for each in check(visit)]
        except RayTpuError as trouble:
            found.append(error(name, trouble.cause, trouble.lever))
    return found


def _server(visit: Visit, version: str) -> Found:
    wanted = [visit.tpu_slice.accelerator] if visit.tpu_slice else []
    if visit.options.provisioning is Provisioning.FLEX_START:
        wanted.append("flex-start")
    for what in wanted:
        least = _YOUNG.get(what, "")
        if least and _GKE in version and _numbers(version) < _numbers(least):
            return warning("API server", f"GKE is {version}; {what} needs {least} or newer.", "Upgrade the cluster.")
    return ok("API server", version)


def _numbers(version: str) -> tuple[int, ...]:
    """``v1.31.1-gke.1846000`` as ``(1, 31, 1, 1846000)``."""
    plain = version.removeprefix("v").replace(_GKE, ".")
    return tuple(int(part) for part in plain.split(".") if part.isdigit())
