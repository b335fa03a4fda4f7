"""Who asks, and what they may do: tokens, and the Role and RoleBinding objects of the store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.doubles.kubernetes.kinds import BINDINGS, CLUSTER_BINDINGS, CLUSTER_ROLES, ROLES, Kind
from tests.doubles.kubernetes.refusal import Refusal, forbidden
from tests.doubles.kubernetes.store import Item, Store


@dataclass(frozen=True)
class Wish:
    """What somebody wants to do.

    :param kind: ``None`` for a kind that is not installed.
    :param resource: the plural, ``pods``.
    :param name: empty for all objects.
    """

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def full(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Authority:
    """
    :ivar users: users by token. The one called ``admin`` may do everything.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.users: dict[str, str] = {}

    def issue(self, user: str) -> str:
        token = secrets.token_hex(16)
        self.users[token] = user
        return token

    def allows(self, user: str, wish: Wish) -> bool:
        return user == "admin" or any(_fits(rule, wish) for rule in self._rules(user, wish.namespace))

    def check(self, user: str, wish: Wish) -> None:
        """:raises Refusal: 403, naming verb and resource."""
        if self.allows(user, wish):
            return
        where = f'in the namespace "{wish.namespace}"' if wish.namespace else "at the cluster scope"
        why = f'User "{user}" cannot {wish.verb} resource "{wish.full}" in API group "{wish.group}" {where}'
        shown = Kind(wish.group, ("v1",), wish.resource, wish.resource)
        raise self._refusal(shown, wish, why)

    @staticmethod
    def _refusal(shown: Kind, wish: Wish, why: str) -> Refusal:
        return forbidden(shown, wish.name, why)

    def _rules(self, user: str, namespace: str) -> Iterator[dict[str, Any]]:
        bindings: list[Item] = list(self._store.items(CLUSTER_BINDINGS))
        if namespace:
            bindings += self._store.items(BINDINGS, namespace)
        for binding in bindings:
            if not any(_subject(each, binding) == user for each in binding.get("subjects") or ()):
                continue
            reference = binding["roleRef"]
            in_namespace = reference["kind"] == "Role"
            role = self._store.find(
                ROLES if in_namespace else CLUSTER_ROLES,
                binding["metadata"]["namespace"] if in_namespace else "",
                reference["name"],
            )
            yield from (role or {}).get("rules") or ()


def account_user(namespace: str, name: str) -> str:
    return f"system:serviceaccount:{namespace}:{name}"


def _subject(subject: dict[str, Any], binding: Item) -> str:
    if subject["kind"] != "ServiceAccount":
        return str(subject["name"])
    return account_user(subject.get("namespace") or binding["metadata"].get("namespace", ""), subject["name"])


def _fits(rule: dict[str, Any], wish: Wish) -> bool:
    def has(part: str, wanted: str) -> bool:
        return bool({"*", wanted} & set(rule.get(part) or ()))

    names = rule.get("resourceNames") or ()
    return (
        has("verbs", wish.verb)
        and has("apiGroups", wish.group)
        and has("resources", wish.full)
        and (not names or wish.name in names)
    )
