"""ResourceQuota, as admission enforces it: pods, what they request, and counts of objects."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from tests.doubles.kubernetes.kinds import PODS, QUOTAS, Kind
from tests.doubles.kubernetes.refusal import forbidden
from tests.doubles.kubernetes.store import Item, Store

_UNITS = {"": 1, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_UNITS |= {"T": 10**12, "Ti": 2**40}


def check(store: Store, kind: Kind, item: Item) -> None:
    """:raises Refusal: 403, with the numbers, where a quota of the namespace is used up."""
    namespace, name = item["metadata"].get("namespace", ""), item["metadata"]["name"]
    asked = _use(kind, item)
    for held in store.items(QUOTAS, namespace) if namespace else ():
        over = []
        for what, limit in (held.get("spec", {}).get("hard") or {}).items():
            if not asked.get(what):
                continue
            used = sum(_use(kind, each).get(what, Decimal(0)) for each in store.items(kind, namespace))
            if used + asked[what] > _number(limit):
                over.append((what, f"{asked[what].normalize():f}", f"{used:f}", limit))
        if over:
            asked_for, in_use, limits = (",".join(f"{each[0]}={each[part]}" for each in over) for part in (1, 2, 3))
            why = (
                f"exceeded quota: {held['metadata']['name']}, requested: {asked_for}, used: {in_use}, limited: {limits}"
            )
            raise forbidden(kind, name, why)


def _use(kind: Kind, item: Item) -> dict[str, Decimal]:
    use = {f"count/{kind.qualified}": Decimal(1)}
    if kind.key != PODS.key or item.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return use
    use["pods"] = Decimal(1)
    for container in item["spec"]["containers"]:
        resources: dict[str, Any] = container.get("resources") or {}
        requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, amount in requests.items():
            use[f"requests.{name}"] = use.get(f"requests.{name}", Decimal(0)) + _number(amount)
    return use


def _number(text: Any) -> Decimal:
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    if found is None:
        raise ValueError(f"{text} is no quantity")
    return Decimal(found[1]) * _UNITS[found[2]]
