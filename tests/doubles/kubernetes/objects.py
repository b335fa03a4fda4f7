"""What create, replace, patch and delete do to an object, whoever asks."""

from __future__ import annotations

import base64
import binascii
import json
import random
import string
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.doubles.kubernetes import metadata, patches, quota, schema
from tests.doubles.kubernetes.apply import Ownership
from tests.doubles.kubernetes.kinds import NAMESPACES, PODS, SECRETS, Kind
from tests.doubles.kubernetes.refusal import (
    Cause,
    Refusal,
    already_exists,
    bad_request,
    conflict,
    invalid,
    not_found,
    stale,
)
from tests.doubles.kubernetes.store import Item, Store

ETCD_LIMIT = 1_572_864
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_POLICIES = {"Foreground": FOREGROUND, "Orphan": ORPHAN}
_KEPT = (
    "uid",
    "creationTimestamp",
    "name",
    "namespace",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)

Admission = Callable[[str, Kind, Item], Refusal | None]


@dataclass(frozen=True)
class Writing:
    """How to write: where, and with which of the API's options.

    :param subresource: ``status`` or empty.
    """

    kind: Kind
    version: str
    namespace: str = ""
    subresource: str = ""
    strict: bool = False
    warn: bool = True
    dry_run: bool = False
    manager: str = "unknown"
    force: bool = False


@dataclass
class Objects:
    """
    :ivar admission: asked before a write, as ``(verb, kind, object)``; a refusal it gives is the answer.
    :ivar now: the server's clock, in epoch seconds.
    """

    store: Store
    admission: list[Admission] = field(default_factory=list)
    now: Callable[[], float] = time.time
    ownership: Ownership = field(default_factory=Ownership)

    def get(self, kind: Kind, namespace: str, name: str) -> Item:
        found = self.store.find(kind, namespace, name)
        if found is None:
            raise not_found(kind, name)
        return found

    def create(self, how: Writing, body: Any) -> tuple[Item, list[str]]:
        kind = how.kind
        item, warnings = self._read(how, body)
        meta = {**item["metadata"]}
        if how.namespace:
            meta["namespace"] = how.namespace
            self._check_namespace(kind, how.namespace, meta.get("name") or meta.get("generateName", ""))
        if meta.get("resourceVersion"):
            raise Refusal(500, "", "resourceVersion should not be set on objects to be created")
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            meta.pop(name, None)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": self.stamp(), "generation": 1}
        item = {**item, "metadata": meta}
        if kind.has_status:
            item.pop("status", None)
            if kind.key in _FIRST_STATUS:
                item["status"] = {"phase": _FIRST_STATUS[kind.key]}
        self._check("create", how, item, None)
        quota.check(self.store, kind, item)
        if self.store.find(kind, how.namespace, meta["name"]) is not None:
            raise already_exists(kind, meta["name"])
        stored = self._put(how, item)
        if not how.dry_run:
            self.ownership.updated(how.manager, None, stored)
        return stored, warnings

    def replace(self, how: Writing, name: str, body: Any) -> tuple[Item, list[str]]:
        old = self.get(how.kind, how.namespace, name)
        new, warnings = self._read(how, body)
        if new["metadata"].get("name", name) != name:
            raise bad_request(f"the name of the object ({new['metadata']['name']}) does not match the name on the URL")
        if how.kind.is_custom and not new["metadata"].get("resourceVersion"):
            message = "Invalid value: 0x0: must be specified for an update"
            raise invalid(how.kind, name, [Cause("metadata.resourceVersion", "FieldValueInvalid", message)])
        return self.update(how, old, new), warnings

    def patch(self, how: Writing, name: str, patch: Any, content_type: str) -> tuple[Item, list[str]]:
        old = self.get(how.kind, how.namespace, name)
        shown = self.shown(old, how)
        if content_type == patches.APPLY:
            raw = self.ownership.applied(how.kind, how.manager, shown, patch, force=how.force)
        else:
            raw = patches.patched(shown, patch, content_type, is_custom=how.kind.is_custom)
        new, warnings = self._read(how, raw)
        stored = self.update(how, old, new, owner="" if content_type == patches.APPLY else how.manager)
        return stored, warnings

    def update(self, how: Writing, old: Item, new: Item, owner: str | None = None) -> Item:
        """Write *new* over *old* as the main or the status endpoint may; the same as before is no write."""
        kind, name = how.kind, old["metadata"]["name"]
        meta = new["metadata"]
        if meta.get("resourceVersion", old["metadata"]["resourceVersion"]) != old["metadata"]["resourceVersion"]:
            raise stale(kind, name)
        if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise conflict(kind, name, _uid_words(meta["uid"], old["metadata"]["uid"]))
        item = _merged_endpoints(how, old, new)
        if item == old:
            return old
        self._check("update", how, item, old)
        if any(item.get(part) != old.get(part) for part in {*item, *old} - {"metadata", "status"}):
            item["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        stored = self._put(how, item)
        if how.dry_run:
            return stored
        self.ownership.updated(how.manager if owner is None else owner, old, stored)
        if stored["metadata"].get("deletionTimestamp") and not stored["metadata"].get("finalizers"):
            self._drop(kind, stored)
        return stored

    def delete(self, how: Writing, name: str, options: dict[str, Any]) -> Item | None:
        """The object where it is only marked, ``None`` where it has gone."""
        old = self.get(how.kind, how.namespace, name)
        meta = old["metadata"]
        wanted = options.get("preconditions") or {}
        if wanted.get("uid", meta["uid"]) != meta["uid"]:
            raise conflict(how.kind, name, _uid_words(wanted["uid"], meta["uid"]))
        if wanted.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
            words = "Precondition failed: ResourceVersion in precondition: {}, ResourceVersion in object meta: {}"
            raise conflict(how.kind, name, words.format(wanted["resourceVersion"], meta["resourceVersion"]))
        self._admit("delete", how.kind, old)
        finalizers = list(meta.get("finalizers") or ())
        more = _POLICIES.get(options.get("propagationPolicy") or "Background")
        if more and more not in finalizers:
            finalizers.append(more)
        if not finalizers:
            if not how.dry_run:
                self._drop(how.kind, old)
            return None
        marked = {**meta, "finalizers": finalizers}
        if not meta.get("deletionTimestamp"):
            generation = meta.get("generation", 0) + 1
            marked |= {"deletionTimestamp": self.stamp(), "deletionGracePeriodSeconds": 0, "generation": generation}
        return self._put(how, {**old, "metadata": marked}) if marked != meta else old

    def shown(self, item: Item, how: Writing) -> Item:
        """*item* in the version that was asked for."""
        return {**item, "apiVersion": how.kind.api_version(how.version), "kind": how.kind.kind}

    def stamp(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now()))

    def _read(self, how: Writing, body: Any) -> tuple[Item, list[str]]:
        """*body* without what its kind does not know, and warnings about that."""
        kind, expected = how.kind, how.kind.api_version(how.version)
        if isinstance(body, dict) and not kind.is_custom:
            body = {"apiVersion": expected, "kind": kind.kind, **body}  # core kinds may leave it to the URL
        if not isinstance(body, dict) or not body.get("kind"):
            raise bad_request("Object 'Kind' is missing in the body of the request")
        if body.get("apiVersion") != expected or body["kind"] != kind.kind:
            given = f"{body.get('apiVersion')}, Kind={body['kind']}"
            raise bad_request(f"the API version in the data ({given}) does not match the expected ({expected})")
        meta = body.get("metadata") or {}
        if not isinstance(meta, dict):
            raise bad_request("json: cannot unmarshal into Go struct field .metadata of type v1.ObjectMeta")
        if how.namespace and meta.get("namespace", how.namespace) != how.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        body = {**body, "metadata": dict(meta)}
        if kind.key == SECRETS.key:
            body = _with_string_data(body)
        if how.version not in kind.schemas:
            return body, []
        kept, unknown = schema.prune(body, kind.schemas[how.version])
        if unknown and how.strict:
            words = ", ".join(f'unknown field "{path}"' for path in unknown)
            raise bad_request(
                f'{kind.kind} in version "{how.version}" cannot be handled as a {kind.kind}: '
                f"strict decoding error: {words}"
            )
        kept = {**schema.default(kept, kind.schemas[how.version]), "metadata": body["metadata"]}
        return kept, [f'unknown field "{path}"' for path in unknown] if how.warn else []

    def _check(self, verb: str, how: Writing, item: Item, old: Item | None) -> None:
        """:raises Refusal: the object is not valid, or admission will not have it."""
        kind = how.kind
        causes = list(metadata.faults(kind, item["metadata"]))
        if how.version in kind.schemas:
            causes += schema.faults(item, kind.schemas[how.version], old)
        elif kind.key == PODS.key and not (item.get("spec") or {}).get("containers"):
            causes.append(Cause("spec.containers", "FieldValueRequired", "Required value"))
        if causes:
            raise invalid(kind, item["metadata"].get("name", ""), causes)
        self._admit(verb, kind, item)

    def _admit(self, verb: str, kind: Kind, item: Item) -> None:
        for ask in self.admission:
            if refusal := ask(verb, kind, item):
                raise refusal

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        found = self.store.find(NAMESPACES, "", namespace)
        if found is None:
            raise not_found(NAMESPACES, namespace)
        if found["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise Refusal(403, "Forbidden", f'{kind.qualified} "{name}" is forbidden: {why}')

    def _put(self, how: Writing, item: Item) -> Item:
        if len(json.dumps(item)) > ETCD_LIMIT:
            raise Refusal(500, "", "etcdserver: request is too large")
        # Stored in the first version; conversion of these CRDs is None, which changes the version's name only.
        item = {**item, "apiVersion": how.kind.api_version(how.kind.versions[0]), "kind": how.kind.kind}
        return item if how.dry_run else self.store.put(how.kind, item)

    def _drop(self, kind: Kind, item: Item) -> None:
        self.ownership.forget(item["metadata"]["uid"])
        self.store.drop(kind, item)


_FIRST_STATUS = {PODS.key: "Pending", NAMESPACES.key: "Active"}


def random_suffix(length: int = 5) -> str:
    return "".join(random.choices(string.ascii_lowercase + string.digits, k=length))


def _merged_endpoints(how: Writing, old: Item, new: Item) -> Item:
    """Of *new* the part that this endpoint writes; the rest of *old*."""
    before = old["metadata"]
    if how.subresource == "status":
        return {**old, "metadata": dict(before), "status": new.get("status", {})}
    meta = {name: value for name, value in new["metadata"].items() if name not in {*_KEPT, "resourceVersion"}}
    meta |= {name: before[name] for name in (*_KEPT, "resourceVersion") if name in before}
    for name in ("labels", "annotations", "finalizers", "ownerReferences"):
        if not meta.get(name):
            meta.pop(name, None)
    item = {**new, "metadata": meta, "apiVersion": old["apiVersion"], "kind": old["kind"]}
    if how.kind.has_status:
        item.pop("status", None)
        if "status" in old:
            item["status"] = old["status"]
    return item


def _with_string_data(body: Item) -> Item:
    data = dict(body.get("data") or {})
    for name, value in data.items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise bad_request(f"illegal base64 data in data[{name}]") from error
    strings = body.pop("stringData", None) or {}
    data |= {name: base64.b64encode(value.encode()).decode() for name, value in strings.items()}
    return {**body, "data": data, "type": body.get("type", "Opaque")}


def _uid_words(wanted: str, found: str) -> str:
    return f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
