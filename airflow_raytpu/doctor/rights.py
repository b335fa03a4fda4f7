"""Whether RBAC lets the backend do what it does, and the namespace is there to do it in."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable

from airflow_raytpu.doctor.findings import FILES, Found, error, ok, unseen
from airflow_raytpu.doctor.needs import KUEUE, NAMESPACES, NEEDED, PROXY, Need
from airflow_raytpu.doctor.visit import Visit
from airflow_raytpu.model.errors import NotInstalledError


async def namespace(visit: Visit) -> AsyncIterator[Found]:
    check, name = "namespace", visit.namespace
    if not await visit.may(Need("get", NAMESPACES)):
        yield unseen(check, f"Whether there is a namespace {name}", "get namespaces")
        return
    try:
        found = await visit.api.get(NAMESPACES, name)
    except NotInstalledError:
        found = None
    if found is None:
        yield error(
            check,
            f"There is no namespace {name}.",
            "Create it, or name another in the connection.",
            f"kubectl create namespace {name}",
        )
        return
    if (found.get("status") or {}).get("phase") == "Terminating":
        yield error(check, f"The namespace {name} is being deleted.", "Wait, then create it anew.")
        return
    yield ok(check, name)


async def rights(visit: Visit) -> AsyncIterator[Found]:
    needed = [
        need
        for need in NEEDED
        if not (need in PROXY and not visit.proxied) and not (need in KUEUE and not visit.options.queue)
    ]
    answers = await asyncio.gather(*map(visit.may, needed))
    missing = [need for need, allowed in zip(needed, answers, strict=True) if not allowed]
    if not missing:
        yield ok("RBAC", f"all {len(needed)} rights that are needed in {visit.namespace}")
        return
    yield error(
        "RBAC",
        f"{len(missing)} of {len(needed)} rights are missing in {visit.namespace}: {_grouped(missing)}.",
        "Grant them; set the subject of the file's RoleBinding to Airflow's identity first.",
        f"kubectl apply --namespace {visit.namespace} -f {FILES}/role.yaml",
    )


def _grouped(needs: Iterable[Need]) -> str:
    verbs = defaultdict(list)
    for need in needs:
        verbs[need.what].append(need.verb)
    return "; ".join(f"{what} {'/'.join(each)}" for what, each in verbs.items())
