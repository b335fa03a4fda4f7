"""Whether KubeRay and GKE's webhook for TPU pods are there, and new enough."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow_raytpu.backends.kuberay.resources import RAYCLUSTERS, RAYJOBS, RAYSERVICES, Resource
from airflow_raytpu.doctor.findings import FILES, Found, error, many, ok, unseen, warning
from airflow_raytpu.doctor.needs import DEFINITIONS, WEBHOOKS, Need
from airflow_raytpu.doctor.visit import Visit

_KINDS = (RAYCLUSTERS, RAYJOBS, RAYSERVICES)
_SHOWN = 4

FIELDS = {
    RAYCLUSTERS: ("authOptions.mode",),
    RAYJOBS: ("preRunningDeadlineSeconds", "activeDeadlineSeconds", "backoffLimit", "rayClusterSpec.authOptions.mode"),
    RAYSERVICES: ("upgradeStrategy.type", "rayClusterConfig.authOptions.mode"),
}
"""Of ``spec``: the youngest fields that our manifests write; an API server that lacks one refuses the object."""

NEWEST = {RAYSERVICES: "suspend"}
"""A field that KubeRay 1.7 brought."""

_INSTALL = (
    "helm upgrade --install kuberay-operator kuberay-operator \\\n"
    "    --repo https://ray-project.github.io/kuberay-helm --version 1.7.0 \\\n"
    "    --namespace kuberay-system --create-namespace"
)
_ADD_ON = "gcloud container clusters update CLUSTER --location=LOCATION \\\n    --update-addons=RayOperator=ENABLED"


async def kinds(visit: Visit) -> AsyncIterator[Found]:
    served = await visit.api.crds()
    if not served:
        yield error(
            "KubeRay",
            "The API server has no kinds of ray.io: KubeRay is not installed.",
            "Install its operator, or else turn on GKE's add-on; one of the two.",
            _INSTALL,
            _ADD_ON,
        )
        return
    missing = [kind.full for kind in _KINDS if kind.version not in served.get(kind.plural, ())]
    if missing:
        yield error("KubeRay", f"No version v1 of {', '.join(missing)} is served.", _UPDATE, _CRDS)
        return
    yield ok("KubeRay", f"{', '.join(kind.plural for kind in _KINDS)} of version v1")


_UPDATE = "Update KubeRay's CRDs, which Helm leaves as they are, and its operator."
_CRDS = "kubectl replace -k \\\n    'github.com/ray-project/kuberay/ray-operator/config/crd?ref=v1.7.0'"


async def fields(visit: Visit) -> AsyncIterator[Found]:
    check = "CRDs"
    if not await visit.may(Need("get", DEFINITIONS)):
        yield unseen(check, "Which KubeRay it is", f"get {DEFINITIONS.full}")
        return
    missing, old = [], False
    for kind, paths in FIELDS.items():
        definition = await visit.api.get(DEFINITIONS, kind.full)
        if definition is None:
            continue
        spec = _spec(definition, kind)
        missing += [f"{kind.plural} spec.{path}" for path in paths if not _has(spec, path)]
        old |= kind in NEWEST and not _has(spec, NEWEST[kind])
    if missing:
        yield error(
            check, f"KubeRay is too old: {many(len(missing), 'field')} missing: {', '.join(missing)}.", _UPDATE, _CRDS
        )
        return
    if old:
        yield warning(check, "KubeRay is older than 1.7, which this package is tried with.", _UPDATE, _CRDS)
        return
    yield ok(check, "of KubeRay 1.7 or newer")


def _spec(definition: Mapping[str, Any], kind: Resource) -> Mapping[str, Any]:
    for version in definition["spec"]["versions"]:
        if version["name"] == kind.version:
            found: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
            return found
    return {}


def _has(schema: Mapping[str, Any], path: str) -> bool:
    name, _, rest = path.partition(".")
    found = (schema.get("properties") or {}).get(name)
    return found is not None and (not rest or _has(found, rest))


async def webhook(visit: Visit) -> AsyncIterator[Found]:
    check = "TPU webhook"
    if not await visit.may(Need("list", WEBHOOKS)):
        yield unseen(check, "The webhook for TPU pods", f"list {WEBHOOKS.full}")
        return
    found = [each["metadata"]["name"] for each in (await visit.api.list(WEBHOOKS))[0] if _of_tpu(each)]
    if found:
        yield ok(check, ", ".join(found))
        return
    yield error(
        check,
        "No mutating webhook for TPU pods was found: their hosts would get no TPU_WORKER_ID and could not find "
        "one another.",
        "GKE's add-on for Ray brings it; beside an operator of your own, install kuberay-tpu-webhook 1.3.2 or "
        "newer from github.com/ai-on-gke (docs/gke.md).",
        _ADD_ON,
    )


def _of_tpu(configuration: Mapping[str, Any]) -> bool:
    hooks = configuration.get("webhooks") or ()
    services = [((each.get("clientConfig") or {}).get("service") or {}).get("name", "") for each in hooks]
    names = [configuration["metadata"]["name"], *(each.get("name", "") for each in hooks), *services]
    return any("tpu" in name for name in names)


async def tokens(visit: Visit) -> AsyncIterator[Found]:
    check = "token auth"
    if not await visit.may(Need("list", RAYCLUSTERS)):
        return  # told with the other rights
    clusters, _ = await visit.api.list(RAYCLUSTERS)
    open_ = [each["metadata"]["name"] for each in clusters if not _asks_for_token(each)]
    if not open_:
        yield ok(
            check, f"on in all {len(clusters)} Ray clusters" if clusters else "on in every cluster of this package"
        )
        return
    shown = ", ".join(open_[:_SHOWN]) + (f" and {len(open_) - _SHOWN} more" if len(open_) > _SHOWN else "")
    yield warning(
        check,
        f"{len(open_)} of {len(clusters)} Ray clusters in {visit.namespace} without it: whoever reaches them can run "
        f"code there. {shown}.",
        "They are not of this package; give them authOptions.mode token, and close their ports.",
        f"kubectl apply --namespace {visit.namespace} -f {FILES}/networkpolicy.yaml",
    )


def _asks_for_token(cluster: Mapping[str, Any]) -> bool:
    return (cluster.get("spec", {}).get("authOptions") or {}).get("mode") == "token"
