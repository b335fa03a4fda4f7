"""Answers that say no, as ``Status`` objects of the Kubernetes API."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.doubles.kubernetes.kinds import Kind


@dataclass(frozen=True)
class Cause:
    """One field that is wrong: *message* is what follows the path."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"

    def to_dict(self) -> dict[str, str]:
        return {"reason": self.reason, "message": self.message, "field": self.field}


class Refusal(Exception):
    """Answered as *code* with a ``Status``; *plain* sends the message alone, as the server does for unknown paths."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        plain: bool = False,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.plain = code, reason, message, plain
        self.details, self.metadata = details, metadata

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata or {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details:
            body["details"] = self.details
        return body


def _details(kind: Kind, name: str) -> dict[str, Any]:
    return {"name": name, **({"group": kind.group} if kind.group else {}), "kind": kind.plural}


def unknown_path() -> Refusal:
    return Refusal(404, "NotFound", "404 page not found\n", plain=True)


def not_found(kind: Kind, name: str) -> Refusal:
    return Refusal(404, "NotFound", f'{kind.qualified} "{name}" not found', details=_details(kind, name))


def already_exists(kind: Kind, name: str) -> Refusal:
    return Refusal(409, "AlreadyExists", f'{kind.qualified} "{name}" already exists', details=_details(kind, name))


def conflict(kind: Kind, name: str, why: str) -> Refusal:
    return Refusal(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}',
        details=_details(kind, name),
    )


def stale(kind: Kind, name: str) -> Refusal:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(kind, name, why)


def invalid(kind: Kind, name: str, causes: Iterable[Cause]) -> Refusal:
    causes = list(causes)
    what = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
    kinded = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    details = {**_details(kind, name), "kind": kind.kind, "causes": [each.to_dict() for each in causes]}
    return Refusal(422, "Invalid", f'{kinded} "{name}" is invalid: {what}', details=details)


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def expired(message: str, metadata: dict[str, Any] | None = None) -> Refusal:
    return Refusal(410, "Expired", message, metadata=metadata)


def too_old(asked: int, oldest: int) -> Refusal:
    return expired(f"too old resource version: {asked} ({oldest})")


def forbidden(kind: Kind, name: str, why: str) -> Refusal:
    what = f'{kind.qualified} "{name}"' if name else kind.qualified
    return Refusal(403, "Forbidden", f"{what} is forbidden: {why}", details=_details(kind, name))


def unauthorized() -> Refusal:
    return Refusal(401, "Unauthorized", "Unauthorized")


def passing(code: int, retry_after: int | None = None) -> Refusal:
    """A fault of the server's own, with the words it has for *code*."""
    reason, message = {
        429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
        500: ("InternalError", "Internal error occurred: etcdserver: leader changed"),
        502: ("", "Bad Gateway"),
        503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
        504: ("Timeout", "Timeout: request did not complete within requested timeout - context deadline exceeded"),
    }.get(code, ("", f"fault {code}"))
    return Refusal(code, reason, message, details={"retryAfterSeconds": retry_after} if retry_after else None)
