"""What requests of this connection name in the namespace: service account, secrets, queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from airflow_raytpu.backends.kuberay.resources import SECRETS
from airflow_raytpu.doctor.findings import FILES, Found, error, ok, unseen, warning
from airflow_raytpu.doctor.needs import ACCOUNTS, QUEUES, Need
from airflow_raytpu.doctor.visit import Visit

_IDENTITY = "iam.gke.io/gcp-service-account"
_PULL = {"kubernetes.io/dockerconfigjson": ".dockerconfigjson", "kubernetes.io/dockercfg": ".dockercfg"}


async def image(visit: Visit) -> AsyncIterator[Found]:
    if visit.options.image:
        yield ok("image", visit.options.image)
        return
    yield error(
        "image",
        "The connection names no image.",
        'Build one and name it: {"image": "..."}. docs/docker.md says how.',
        "docker build -f docker/ray-tpu.Dockerfile -t IMAGE . && docker push IMAGE",
    )


async def account(visit: Visit) -> AsyncIterator[Found]:
    check, name = "account", visit.options.service_account
    if not name:
        yield warning(
            check,
            "The connection names no service account: pods run as default, which as a rule can neither reach a bucket "
            "nor end their cluster when Airflow is gone.",
            'Make one, and name it: {"service_account": "ray-tpu"}.',
            f"kubectl apply --namespace {visit.namespace} -f {FILES}/serviceaccount.yaml",
        )
        return
    if not await visit.may(Need("get", ACCOUNTS)):
        yield unseen(check, f"The service account {name}", "get serviceaccounts")
        return
    found = await visit.api.get(ACCOUNTS, name)
    if found is None:
        yield error(
            check,
            f"There is no service account {name} in {visit.namespace}: no pod of it would be made.",
            "Create it, with your Google service account in its annotation.",
            f"kubectl apply --namespace {visit.namespace} -f {FILES}/serviceaccount.yaml",
        )
        return
    google = (found["metadata"].get("annotations") or {}).get(_IDENTITY)
    yield ok(check, f"{name}, which is {google} in Google Cloud") if google else _no_identity(name)


def _no_identity(name: str) -> Found:
    return warning(
        "account",
        f"The service account {name} names no Google service account: its pods reach buckets only where IAM names the "
        "Kubernetes account itself.",
        f"Grant that, or annotate it with {_IDENTITY}.",
    )


async def secrets(visit: Visit) -> AsyncIterator[Found]:
    names = visit.options.image_pull_secrets
    if not (names or visit.options.secret_env):
        return
    if not await visit.may(Need("get", SECRETS)):
        return  # told with the other rights
    found = [_pull(visit, name, await visit.api.get(SECRETS, name)) for name in names]
    for variable, reference in visit.options.secret_env.items():
        name, _, key = reference.partition("/")
        found.append(_key(visit, variable, name, key, await visit.api.get(SECRETS, name)))
    for each in found:
        yield each


def _pull(visit: Visit, name: str, secret: dict[str, Any] | None) -> Found:
    make = f"kubectl create secret docker-registry {name} \\\n    --namespace {visit.namespace} \\\n"
    make += "    --docker-server=SERVER --docker-username=USER"
    if secret is None:
        return error("pull secret", f"There is no Secret {name} in {visit.namespace}.", "Create it.", make)
    if _PULL.get(secret.get("type", ""), "") not in (secret.get("data") or {}):
        return error(
            "pull secret", f"The Secret {name} of type {secret.get('type')} pulls no image.", "Make anew.", make
        )
    return ok("pull secret", name)


def _key(visit: Visit, variable: str, name: str, key: str, secret: dict[str, Any] | None) -> Found:
    if secret is not None and key in (secret.get("data") or {}):
        return ok("secret", f"{name}/{key} for {variable}")
    lacks = f"The Secret {name} has no key {key}" if secret else f"There is no Secret {name}"
    make = f"kubectl create secret generic {name} \\\n    --namespace {visit.namespace} --from-file={key}=FILE"
    return error("secret", f"{lacks} in {visit.namespace}, which {variable} is taken from.", "Create it.", make)


async def queue(visit: Visit) -> AsyncIterator[Found]:
    check, name = "queue", visit.options.queue
    if not name:
        return
    served = (await visit.api.crds(QUEUES.group)).get(QUEUES.plural)
    if not served:
        yield error(
            check,
            f"The connection names the queue {name}, but Kueue is not installed.",
            "Install Kueue, or leave the queue out.",
            "helm install kueue oci://registry.k8s.io/kueue/charts/kueue \\\n"
            "    --version 0.19.2 --namespace kueue-system --create-namespace",
        )
        return
    if not await visit.may(Need("get", QUEUES)):
        yield unseen(check, f"The queue {name}", "get localqueues.kueue.x-k8s.io")
        return
    yield _queue(visit, await visit.api.get(replace(QUEUES, version=served[0]), name))


def _queue(visit: Visit, found: dict[str, Any] | None) -> Found:
    name = visit.options.queue
    apply = f"kubectl apply -f {FILES}/kueue.yaml"
    if found is None:
        return error("queue", f"There is no LocalQueue {name} in {visit.namespace}.", "Create it.", apply)
    for condition in (found.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Active" and condition.get("status") != "True":
            return error("queue", f"The LocalQueue {name} takes nothing: {condition.get('message')}.", "See its cause.")
    return ok("queue", f"{name}, of ClusterQueue {(found.get('spec') or {}).get('clusterQueue')}")
