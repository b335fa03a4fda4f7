"""What the API server's refusals mean (pure). Worded as kube-apiserver 1.36 answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_raytpu.backends.kuberay.resources import Resource
from airflow_raytpu.model.errors import (
    BackendUnreachable,
    ForbiddenError,
    ForeignObjectError,
    ManifestError,
    NotInstalledError,
    RayTpuError,
)

_PASSING = {408, 425, 429}
_SHOWN = 700
_CAUSES_SHOWN = 8

_TOO_LARGE = "request is too large"
_QUOTA = re.compile(r"exceeded quota: (?P<quota>[^,]+), (?P<numbers>requested: .*)", re.DOTALL)
_USER = re.compile(r'User "(?P<user>[^"]*)" cannot')
_WEBHOOK = re.compile(r'admission webhook "(?P<name>[^"]+)" denied the request')
_CALLED = re.compile(r'failed calling webhook "(?P<name>[^"]+)"')
_UNKNOWN = re.compile(r'unknown field "(?P<field>[^"]+)"')


class Exists(ForeignObjectError):
    """The name is taken; whose it is, is for the caller to find out.

    :ivar deleting: what has the name is on its way out.
    """

    def __init__(self, cause: str, lever: str = "", *, deleting: bool = False) -> None:
        super().__init__(cause, lever)
        self.deleting = deleting


class Conflict(BackendUnreachable):
    """The object has changed since it was read; read it again."""


class Expired(BackendUnreachable):
    """The API server no longer remembers the moment that was named; list again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for, in the words of RBAC.

    :param guarded: it holds only for the version that it names.
    """

    verb: str
    resource: Resource
    namespace: str
    name: str = ""
    guarded: bool = False

    def __str__(self) -> str:
        what = f"{self.verb} {self.resource.full}" + (f" {self.name}" if self.name else "")
        return f"{what} in namespace {self.namespace}" if self.resource.namespaced else what


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the API server.

    :param retry_after: seconds it asked us to wait; 0 where it did not.
    """

    status: int
    text: str
    retry_after: float = 0.0

    @property
    def detail(self) -> Mapping[str, Any]:
        """The ``Status`` object; empty where the answer is none (a proxy's page)."""
        try:
            found = json.loads(self.text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) and found.get("kind") == "Status" else {}

    @property
    def message(self) -> str:
        return str(self.detail.get("message") or self.text.strip() or "no text")[:_SHOWN]

    @property
    def reason(self) -> str:
        return str(self.detail.get("reason") or "")

    @property
    def details(self) -> Mapping[str, Any]:
        return self.detail.get("details") or {}

    @property
    def pause(self) -> float:
        """Seconds to wait at least, by header or body."""
        return max(self.retry_after, float(self.details.get("retryAfterSeconds") or 0))

    def __str__(self) -> str:
        return f"HTTP {self.status}: {self.message}"


def passes(asked: Asked, answer: Answer) -> bool:
    """Whether the same request may well be answered otherwise a moment later."""
    if answer.status == 409:
        # Another writer came between, to the object or on a create to the quota's own bookkeeping.
        return answer.reason == "Conflict" and not asked.guarded and not other_uid(answer)
    return answer.status in _PASSING or (answer.status >= 500 and _TOO_LARGE not in answer.text)


def refusal(asked: Asked, answer: Answer) -> RayTpuError:
    """The error that *answer* is."""
    for rule in (_denied, _unauthorized, _forbidden, _absent, _taken, _expired, _invalid):
        found = rule(asked, answer)
        if found is not None:
            return found
    webhook = _CALLED.search(answer.message)
    return BackendUnreachable(
        f"The API server could not {asked}: {answer}",
        f'See whether the service behind webhook "{webhook["name"]}" runs.'
        if webhook
        else "Look whether the Kubernetes API server, or a proxy before it, is in trouble.",
    )


def missing_name(asked: Asked, answer: Answer) -> bool:
    """A 404 for this very object, not for its kind or its namespace."""
    # The status first: the body of an answer that is no refusal is large, and read by whoever asked for it.
    if answer.status != 404 or not asked.name:
        return False
    return answer.details.get("name") == asked.name and not _no_namespace(answer)


def other_uid(answer: Answer) -> bool:
    """A delete that met another object of the same name."""
    return answer.status == 409 and "UID in precondition" in answer.message


def _no_namespace(answer: Answer) -> bool:
    return answer.details.get("kind") == "namespaces" or bool(
        re.search(r'namespaces "[^"]*" not found', answer.message)
    )


def _denied(asked: Asked, answer: Answer) -> RayTpuError | None:
    webhook = _WEBHOOK.search(answer.message)
    if webhook is None or answer.status >= 500:
        return None
    return ManifestError(
        f'Admission webhook "{webhook["name"]}" does not let us {asked}: {answer.message}',
        "Change what it names, or ask whoever runs that webhook.",
    )


def _unauthorized(asked: Asked, answer: Answer) -> RayTpuError | None:
    if answer.status != 401:
        return None
    return ForbiddenError(
        f"The API server does not know who we are, with freshly loaded credentials too, so we cannot {asked}: {answer}",
        "Renew the token or certificate of the Kubernetes connection.",
    )


def _forbidden(asked: Asked, answer: Answer) -> RayTpuError | None:
    if answer.status != 403:
        return None
    text, resource = answer.message, asked.resource
    quota = _QUOTA.search(text)
    if quota:
        return ForbiddenError(
            f"Quota {quota['quota']} of namespace {asked.namespace} is used up: {quota['numbers']}.",
            "Ask for less, delete what is no longer used, or have the ResourceQuota raised.",
        )
    if "being terminated" in text:
        return NotInstalledError(
            f"Namespace {asked.namespace} is being deleted.", "Use another one, or wait and make it again."
        )
    user = _USER.search(text)
    if user is None:
        return ForbiddenError(f"Kubernetes does not let us {asked}: {text}", "Change what that policy names.")
    where = f"namespace {asked.namespace}" if resource.namespaced else "the whole cluster"
    kind = "Role and RoleBinding" if resource.namespaced else "ClusterRole and ClusterRoleBinding"
    return ForbiddenError(
        f"{user['user']} may not {asked.verb} {resource.full} in {where}.",
        f'Give it a {kind} with apiGroups ["{resource.group}"], resources ["{resource.plural}"], '
        f'verbs ["{asked.verb}"].',
    )


def _absent(asked: Asked, answer: Answer) -> RayTpuError | None:
    if answer.status != 404:
        return None
    if _no_namespace(answer):
        return NotInstalledError(
            f"There is no namespace {asked.namespace}.",
            f"kubectl create namespace {asked.namespace}, or name another one in the connection.",
        )
    if answer.details.get("name"):
        return NotInstalledError(f"{asked}: {answer.message}.")
    resource = asked.resource
    return NotInstalledError(
        f"The API server has no {resource.full} of version {resource.version}.",
        _installing(resource),
    )


def _installing(resource: Resource) -> str:
    if resource.group == "ray.io":
        return "Install the KubeRay operator with its CRDs, or update it."
    if resource.group == "kueue.x-k8s.io":
        return "Install Kueue, or leave the queue out."
    return "Look whether the connection leads to a Kubernetes API server."


def _taken(asked: Asked, answer: Answer) -> RayTpuError | None:
    if answer.status != 409:
        return None
    if answer.reason == "AlreadyExists":
        deleting = "is being deleted" in answer.message
        return Exists(
            f"{asked.resource.full} {asked.name} is there already{', and is being deleted' if deleting else ''}.",
            "Use another name, or delete it first.",
            deleting=deleting,
        )
    return Conflict(f"{asked}: {answer.message}", "Something else wrote to it at the same time; try again.")


def _expired(asked: Asked, answer: Answer) -> RayTpuError | None:
    return Expired(f"{asked}: {answer}") if answer.status == 410 else None


def _invalid(asked: Asked, answer: Answer) -> RayTpuError | None:
    too_large = answer.status == 413 or _TOO_LARGE in answer.text
    if too_large:
        return ManifestError(
            f"{asked.resource.kind} {asked.name} is too large for Kubernetes: {answer}",
            "Keep it under 1.5 MB: put data in a bucket and name it.",
        )
    if not 400 <= answer.status < 500 or not answer.detail or answer.status in _PASSING:
        return None
    return ManifestError(
        f"Kubernetes refuses {asked.resource.kind} {asked.name}: {'; '.join(_fields(answer))}", _naming(asked)
    )


def _naming(asked: Asked) -> str:
    return f"Change what they name in the {asked.resource.kind}'s options, pod_template or manifest."


def _fields(answer: Answer) -> list[str]:
    causes = [f"{cause.get('field', '?')}: {cause.get('message', '')}" for cause in answer.details.get("causes") or ()]
    unknown = [f"{field}: no such field" for field in _UNKNOWN.findall(answer.message)]
    found = causes or unknown or [answer.message]
    more = len(found) - _CAUSES_SHOWN
    return found[:_CAUSES_SHOWN] + ([f"and {more} more"] if more > 0 else [])
