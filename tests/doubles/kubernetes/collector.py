"""Garbage collection by ownerReferences, as the controller manager does it."""

from __future__ import annotations

from typing import Any

from tests.doubles.kubernetes.kinds import Kind
from tests.doubles.kubernetes.objects import FOREGROUND, ORPHAN, Objects, Writing
from tests.doubles.kubernetes.store import Change, Item


def litters(change: Change) -> bool:
    """Whether *change* may leave work: something went or is going, or came with an owner."""
    if change.after is None:
        return True
    meta = change.after["metadata"]
    return bool(meta.get("deletionTimestamp")) or (change.before is None and bool(meta.get("ownerReferences")))


def collect(objects: Objects, kinds: list[Kind]) -> bool:
    """One round; whether it changed anything."""
    placed = [(kind, item) for kind in kinds for item in objects.store.items(kind)]
    uids = {item["metadata"]["uid"]: item for _, item in placed}
    visits = [_visit(objects, kind, item, uids, placed) for kind, item in placed]
    return any(visits)


def _visit(objects: Objects, kind: Kind, item: Item, uids: dict[str, Item], placed: list[tuple[Kind, Item]]) -> bool:
    meta = item["metadata"]
    finalizers = meta.get("finalizers") or ()
    if meta.get("deletionTimestamp") and ORPHAN in finalizers:
        for other_kind, other in placed:
            if _owns(meta["uid"], other):
                _write(objects, other_kind, other, ownerReferences=_without(other, meta["uid"]))
        return _unfinalize(objects, kind, item, ORPHAN)
    if meta.get("deletionTimestamp") and FOREGROUND in finalizers:
        holding = [(each_kind, each) for each_kind, each in placed if _owns(meta["uid"], each)]
        if not holding:
            return _unfinalize(objects, kind, item, FOREGROUND)
        deleted = [_delete(objects, *each, "Foreground") for each in holding]
        return any(deleted)
    owners = meta.get("ownerReferences") or ()
    if owners and not any(owner["uid"] in uids for owner in owners):
        return _delete(objects, kind, item, "Background")
    return False


def _owns(uid: str, item: Item) -> bool:
    return any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences") or ())


def _without(item: Item, uid: str) -> list[Any]:
    return [owner for owner in item["metadata"]["ownerReferences"] if owner["uid"] != uid]


def _unfinalize(objects: Objects, kind: Kind, item: Item, finalizer: str) -> bool:
    left = [name for name in item["metadata"]["finalizers"] if name != finalizer]
    _write(objects, kind, item, finalizers=left)
    return True


def _write(objects: Objects, kind: Kind, item: Item, **changed: Any) -> None:
    how = Writing(kind, kind.versions[0], item["metadata"].get("namespace", ""), manager="kube-controller-manager")
    now = objects.store.find(kind, how.namespace, item["metadata"]["name"])
    if now is not None:
        objects.update(how, now, {**now, "metadata": {**now["metadata"], **changed}})


def _delete(objects: Objects, kind: Kind, item: Item, policy: str) -> bool:
    how = Writing(kind, kind.versions[0], item["metadata"].get("namespace", ""))
    now = objects.store.find(kind, how.namespace, item["metadata"]["name"])
    if now is None or now["metadata"].get("deletionTimestamp"):
        return False
    objects.delete(how, now["metadata"]["name"], {"propagationPolicy": policy})
    return True
