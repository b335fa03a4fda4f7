"""What every object's metadata must be, and how objects are selected by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.doubles.kubernetes.kinds import EVENTS, PODS, Kind
from tests.doubles.kubernetes.refusal import Cause, bad_request

ANNOTATIONS_LIMIT = 256 * 1024
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")

Test = Callable[[dict[str, Any]], bool]


def faults(kind: Kind, meta: dict[str, Any]) -> Iterator[Cause]:
    yield from _name_faults(kind, str(meta.get("name", "")))
    for key, value in (meta.get("labels") or {}).items():
        yield from _key_faults("metadata.labels", key)
        if not isinstance(value, str) or len(value) > 63 or not _VALUE.fullmatch(value):
            words = "must be no more than 63 characters" if len(str(value)) > 63 else "a valid label must be an alpha"
            yield Cause("metadata.labels", "FieldValueInvalid", f'Invalid value: "{value}": {words}')
    annotations = meta.get("annotations") or {}
    for key in annotations:
        yield from _key_faults("metadata.annotations", key.lower())
    if sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items()) > ANNOTATIONS_LIMIT:
        message = f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"
        yield Cause("metadata.annotations", "FieldValueTooLong", message)
    for index, owner in enumerate(meta.get("ownerReferences") or ()):
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                yield Cause(f"metadata.ownerReferences[{index}].{name}", "FieldValueInvalid", "must not be empty")
    for name in meta.get("finalizers") or ():
        if name not in {"foregroundDeletion", "orphan"} and not _is_qualified(name):
            yield Cause("metadata.finalizers", "FieldValueInvalid", f'Invalid value: "{name}"')


def _name_faults(kind: Kind, name: str) -> Iterator[Cause]:
    if not name:
        yield Cause("metadata.name", "FieldValueRequired", "Required value: name or generateName is required")
        return
    if kind.plural == "services" and (len(name) > 63 or not _DNS_1035.fullmatch(name)):
        yield Cause("metadata.name", "FieldValueInvalid", f'Invalid value: "{name}": a DNS-1035 label must consist of')
    elif kind.group != "rbac.authorization.k8s.io" and (len(name) > 253 or not _SUBDOMAIN.fullmatch(name)):
        words = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
        yield Cause("metadata.name", "FieldValueInvalid", f'Invalid value: "{name}": {words}')


def _key_faults(where: str, key: str) -> Iterator[Cause]:
    if not _is_qualified(key):
        yield Cause(where, "FieldValueInvalid", f'Invalid value: "{key}": name part must consist of alphanumerics')


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    fits = len(name) <= 63 and bool(_NAME_PART.fullmatch(name))
    return fits and (not slash or (len(prefix) <= 253 and bool(_SUBDOMAIN.fullmatch(prefix))))


def label_test(selector: str) -> Test:
    """``a=b,c!=d,e in (f,g),h notin (i),j,!k``."""
    terms = [_label_term(each.strip()) for each in re.split(r",(?![^(]*\))", selector) if each.strip()]
    return lambda item: all(term(item["metadata"].get("labels") or {}) for term in terms)


def _label_term(term: str) -> Test:
    if found := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", term):
        key, wanted = found[1], {each.strip() for each in found[3].split(",")}
        if found[2] == "in":
            return lambda labels: labels.get(key) in wanted
        return lambda labels: labels.get(key) not in wanted
    if found := re.fullmatch(r"([^\s!=]+)\s*(==?|!=)\s*([^\s=]*)", term):
        key, value = found[1], found[3]
        if not _VALUE.fullmatch(value) or len(value) > 63:
            raise bad_request(f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}"')
        return lambda labels: (labels.get(key) == value) is (found[2] != "!=")
    if found := re.fullmatch(r"(!?)\s*([^\s!=,()]+)", term):
        return lambda labels: (found[2] in labels) is not bool(found[1])
    raise bad_request(f"unable to parse requirement: {term}")


_FIELDS: dict[str, tuple[str, ...]] = {
    PODS.plural: ("spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "status.phase", "status.podIP"),
    EVENTS.plural: (
        *(f"involvedObject.{name}" for name in ("kind", "name", "namespace", "uid", "apiVersion", "fieldPath")),
        *("reason", "type", "reportingComponent", "source"),
    ),
    "secrets": ("type",),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
}


def field_test(kind: Kind, selector: str) -> Test:
    """``metadata.name=a,involvedObject.kind!=b``; a custom kind knows its name and namespace alone."""
    known = {"metadata.name", "metadata.namespace", *(() if kind.is_custom else _FIELDS.get(kind.plural, ()))}
    terms: list[Test] = []
    for term in filter(None, selector.split(",")):
        found = re.fullmatch(r"([^=!]+)(==?|!=)(.*)", term)
        if not found:
            raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
        path, equal, value = found[1], found[2] != "!=", found[3]
        if path not in known:
            raise bad_request(f"field label not supported: {path}")
        terms.append(lambda item, path=path, equal=equal, value=value: (_at(item, path) == value) is equal)
    return lambda item: all(term(item) for term in terms)


def _at(item: Any, path: str) -> str:
    for name in path.split("."):
        item = item.get(name, "") if isinstance(item, dict) else ""
    return str(item) if item is not None else ""
